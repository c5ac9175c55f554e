"""The loop as a user types it: sample, score, train, sample again."""

import gzip
import math

import pytest

from rolloutlab.objective.option_docs import OPTIONS
from rolloutlab.widgets.progress import Progress

CHAT = "%%chat capitals -n 4 --over countries --max-tokens 8 --seed 1\nsystem: One word.\nuser: Capital of {{country}}?"
REWARD = '%%reward capitals\nreturn {"length": len(answer) / 8, "right": float(answer == row["capital"])}'
TRAIN = "%%train capitals\nlearning_rate: 2e-3  # the policy's own\nepsilon: 0.2"


@pytest.fixture
def service(service):
    """The module's, emptied after each test: these train."""
    yield service
    service.empty()


def test_chat_samples_one_group_per_row_and_binds_it(notebook):
    collection = notebook.run(CHAT.replace("--seed", "-o answers --seed"))
    assert notebook["answers"] is collection
    assert [group.name for group in collection.groups] == ["capitals/0", "capitals/1"]
    assert [len(group.trajectories) for group in collection.groups] == [4, 4]
    first = collection.trajectories[0]
    assert [m["content"] for m in first.messages[:2]] == ["One word.", "Capital of France?"]
    assert first.row == {"country": "France", "capital": "Paris"}
    assert first.step == 0
    assert first.sampling == {"temperature": 1.0, "top_p": 1.0, "seed": 1}


def test_a_line_says_how_many_rows_of_a_file_have_been_read(notebook, tmp_path, monkeypatch):
    monkeypatch.setattr(Progress, "count", lambda self, done: told.append((self._title, done)))
    told, path = [], tmp_path / "tiny.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a":1}\n' * 2500))
    notebook.run(f"%%chat tiny --dry-run --over {path}\nuser: {{{{a}}}}")
    assert ("reading rows", 2000) in told


def test_the_same_seed_samples_the_same_again_in_a_new_generation(notebook):
    first, second = notebook.run(CHAT), notebook.run(CHAT)
    assert [t.answer for t in first.trajectories] == [t.answer for t in second.trajectories]
    assert (first.name, second.name) == ("capitals:1", "capitals")
    assert list(notebook.run("%collections").index) == ["capitals", "capitals:1"]


def test_a_reward_in_parts_is_their_sum_and_every_part_has_a_column(notebook):
    notebook.run(CHAT)
    frame = notebook.run(REWARD).to_frame()
    assert frame["reward"].tolist() == pytest.approx((frame["length"] + frame["right"]).tolist())
    assert set(frame["source"]) == {"function"}


def test_train_reports_what_will_train_then_follows_the_job_to_its_checkpoint(notebook, capsys):
    notebook.run(CHAT)
    notebook.run(REWARD)
    job = notebook.run(TRAIN)
    assert "of 8 trajectories will train" in capsys.readouterr().out
    assert job.status == "succeeded"
    assert job.step == 1
    assert job.metrics()["ratio_max"].iloc[0] == pytest.approx(1, abs=1e-3)
    assert notebook.run("%model").newest == 1
    assert notebook.run(CHAT).trajectories[0].step == 1


def test_a_trained_model_answers_differently_from_its_older_checkpoint(notebook):
    notebook.run(CHAT)
    notebook.run(REWARD)
    notebook.run("%%train capitals\nlearning_rate: 0.05")
    new = notebook.run(CHAT)
    old = notebook.run(CHAT.replace("--seed", "-m lab/practice@0 --seed"))
    assert [t.answer for t in new.trajectories] != [t.answer for t in old.trajectories]


def test_an_unscored_part_of_a_collection_is_left_out_and_reported(notebook, capsys):
    collection = notebook.run(CHAT)
    frame = collection.to_frame()
    frame.loc[frame.index[:4], "reward"] = [0.0, 1.0, 2.0, 3.0]
    assert len(collection.update_rewards(frame)) == 4
    notebook.run("%%train capitals")
    assert "4 left out: no reward yet (capitals/1/0, " in capsys.readouterr().out


def test_a_hand_edit_is_logged_with_old_and_new(notebook, session):
    collection = notebook.run(CHAT)
    notebook.run("%%reward capitals\nreturn 0.0")
    frame = collection.to_frame()
    frame.loc[frame.index[0], "reward"] = 1.0
    [edit] = collection.update_rewards(frame)
    assert (edit.old, edit.new, edit.source) == (0.0, 1.0, "hand")
    history = session.store.rewards.history(collection.trajectories[0])
    assert [(e.old, e.new, e.source) for e in history] == [(None, 0.0, "function"), (0.0, 1.0, "hand")]


def test_a_job_can_be_attached_to_by_the_beginning_of_its_id(notebook):
    notebook.run(CHAT)
    notebook.run(REWARD)
    submitted = notebook.run("%%train capitals --no-wait")
    again = notebook.run(f"%job {submitted.id[:8]} --wait")
    assert again.id == submitted.id
    assert again.status == "succeeded"
    assert list(notebook.run("%jobs").index) == [submitted.id[:8]]


def test_a_dry_run_shows_what_would_train_and_submits_nothing(notebook, session):
    notebook.run(CHAT)
    notebook.run(REWARD)
    check = notebook.run(TRAIN.replace("capitals", "'cap*' --dry-run -o check", 1))
    assert notebook["check"] is check
    assert repr(check).startswith("dry run of capitals for lab/practice@0: nothing was submitted\n")
    assert len(check.to_frame()) == 8
    assert session.jobs().empty


def test_several_collections_train_in_one_job(notebook, session):
    for name in ("capitals", "towns"):
        notebook.run(CHAT.replace("capitals", name, 1))
        notebook.run(REWARD.replace("capitals", name, 1))
    notebook.run("%%train capitals 'to*'")
    assert notebook.run("%jobs")["collections"].tolist() == ["capitals, towns"]
    assert notebook.run("%job").step == 1
    assert notebook.run("%models").loc["lab/practice", "newest"] == 1


def test_the_help_of_train_explains_every_option(notebook):
    shown = notebook.shell.find_cell_magic("train").__doc__
    for name, option in OPTIONS.items():
        assert f"\n    {name}: {option.does.split()[0]} " in shown
    assert "\n    %%train capitals\n    learning_rate: 2e-3\n" in shown


def test_without_a_role_the_cell_is_one_user_message(notebook):
    collection = notebook.run("%%chat --max-tokens 4\nSay hello\nto me")
    assert collection.name == "chat"
    assert collection.trajectories[0].messages[0] == {"role": "user", "content": "Say hello\nto me"}


def test_a_group_is_shown_with_its_advantages(notebook):
    notebook.run(CHAT)
    notebook.run(REWARD)
    text = repr(notebook.run("%group capitals/1"))
    assert text.startswith("capitals/1: 4 completions in 1 group, mean reward")
    assert "Capital of Peru?" in text


def test_every_shown_number_is_a_number(notebook):
    notebook.run(CHAT)
    frame = notebook.run(REWARD).to_frame()
    assert all(math.isfinite(value) for value in [*frame["reward"], *frame["advantage"]])


def test_a_quoted_text_is_read_as_python_reads_it(notebook):
    shown = notebook.run('%%chat x --system "Be brief." --stop "\\n" --stop ; --dry-run\nuser: hello')
    assert shown.request.messages[0].content == "Be brief."
    assert shown.request.stop == ["\n", ";"]


def test_answers_of_another_model_on_the_same_base_are_its_own_until_one_of_both_is_trained(notebook):
    notebook.run("%model lab/twin")
    notebook.run("%%chat twins -n 4 --seed 1 --max-tokens 4\nuser: hello")
    notebook.run("%%reward twins\nreturn float(trajectory.name.endswith('0'))")
    notebook.run("%model lab/other_twin")
    assert not any("sampled from" in line for line in notebook.run("%%train twins --dry-run").preflight.warnings)
    notebook.run("%%train twins")
    [warning] = [line for line in notebook.run("%%train twins --dry-run").preflight.warnings if "sampled from" in line]
    assert warning == "4 trajectories sampled from lab/twin, not lab/other_twin -> %model lab/twin"
    notebook.run("%model lab/practice")
