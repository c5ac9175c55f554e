"""`%%chat NAME --top-up`: further completions for the groups of a scored collection that have nothing to learn."""

import asyncio
import re

import pytest

from rolloutlab import Judge, Step
from rolloutlab.api.inference import complete
from rolloutlab.errors import InputError, RefusedError
from rolloutlab.sampling.programs.program import KnownPrograms
from rolloutlab.sampling.writer import TrajectoryWriter
from rolloutlab.store.models import StoredTrajectory
from rolloutlab.trajectories.top_up import check_factor

CHAT = "%%chat capitals -n 4 --over countries --max-tokens 4 --seed 1\nuser: Capital of {{country}}?"
TOP_UP = "%%chat capitals --top-up"
LATE = "%%reward capitals\nreturn float(row['country'] == 'Peru' and index % 2 or index >= 4)"
NEVER = "%%reward capitals\nreturn float(row['country'] == 'Peru' and index % 2)"


@pytest.fixture
def capitals(notebook):
    """A sampled collection of two groups of four, and a notebook that knows the place of a trajectory as `index`."""
    notebook.run(CHAT)
    return notebook


def scored(notebook, cell):
    return notebook.run(cell.replace("index", "int(trajectory.name.rpartition('/')[2])"))


def sizes(collection):
    return [len(group.trajectories) for group in collection.groups]


def lines(capsys):
    """What was printed before the result, without numbers of tokens."""
    return re.sub(r"\d+ tokens", "N tokens", capsys.readouterr().out.partition("Out[")[0]).splitlines()


def test_a_group_with_nothing_to_learn_gets_more_completions_which_the_same_reward_scores(capitals, capsys):
    before = scored(capitals, LATE).to_frame()
    lines(capsys)
    after = capitals.run(TOP_UP)
    assert after.name == "capitals"
    assert sizes(after) == [8, 4]
    assert after.to_frame()["reward"].tolist() == [0.0] * 4 + [1.0] * 4 + [0.0, 1.0, 0.0, 1.0]
    assert after.to_frame()["answer"].tolist()[:4] == before["answer"].tolist()[:4]
    assert lines(capsys) == [
        "1 of 2 groups has nothing to learn (1 all fail): 4 completions more for it",
        "1 of 1 group trains now: 4 completions (N tokens) beside the 8 (N tokens) before",
    ]
    assert capitals.lab.store.collection("capitals").missing == 0
    assert "in 2 of 2 groups" in repr(capitals.run("%%train capitals --dry-run"))


def test_it_ends_when_a_group_trains_and_at_a_factor_of_the_first_sampling(capitals, capsys):
    scored(capitals, LATE)
    assert sizes(capitals.run(f"{TOP_UP} 4")) == [8, 4]
    scored(capitals, NEVER)
    lines(capsys)
    assert sizes(capitals.run(f"{TOP_UP} 3.5")) == [14, 4]
    assert lines(capsys) == [
        "1 of 2 groups has nothing to learn (1 all fail): 4 completions more for it",
        "1 of 2 groups has nothing to learn (1 all fail): 2 completions more for it",
        "0 of 1 group train now: 6 completions (N tokens) beside the 12 (N tokens) before",
        "1 of 2 groups has nothing to learn (1 all fail): capitals/0, with 3.5 times as many completions as at first "
        "-> %%chat capitals --top-up 7, or other rows",
    ]
    assert sizes(capitals.run(f"{TOP_UP} 3.5")) == [14, 4]


def test_nothing_is_sampled_where_every_group_trains(capitals, capsys):
    scored(capitals, "%%reward capitals\nreturn index")
    lines(capsys)
    assert sizes(capitals.run(TOP_UP)) == [4, 4]
    assert lines(capsys) == ["none of the 2 groups of capitals lacks something to learn"]


def test_a_top_up_samples_the_checkpoint_of_the_collection_also_after_a_job(notebook):
    notebook.run(CHAT)
    scored(notebook, "%%reward capitals\nreturn index")
    notebook.run("%%train capitals\nlearning_rate: 0.05")
    scored(notebook, NEVER)
    topped_up = notebook.run(f"{TOP_UP} 3")
    assert sizes(topped_up) == [12, 4]
    assert len({t.step for t in topped_up.trajectories}) == 1
    assert len({t.answer for t in topped_up.groups[0].trajectories}) > 4


def test_two_collections_of_one_seed_are_topped_up_alike(notebook):
    answers = []
    for _ in range(2):
        notebook.run(CHAT)
        scored(notebook, NEVER)
        answers.append([t.answer for t in notebook.run(f"{TOP_UP} 3").trajectories])
    assert answers[0] == answers[1]


def test_what_nothing_here_can_score_is_sampled_once_and_said(capitals, capsys):
    frame = capitals.lab.collection("capitals").to_frame()
    frame["reward"] = [0.0] * 4 + [1.0, 0.0, 0.0, 0.0]
    capitals.lab.collection("capitals").update_rewards(frame)
    lines(capsys)
    assert sizes(capitals.run(f"{TOP_UP} 4")) == [8, 4]
    assert lines(capsys) == [
        "1 of 2 groups has nothing to learn (1 all fail): 4 completions more for it",
        "4 completions (N tokens) beside the 8 (N tokens) before",
        "4 completions of 1 group have no reward yet -> %rewards capitals, then %%chat capitals --top-up again",
    ]
    assert sizes(capitals.run(f"{TOP_UP} 4")) == [8, 4]
    assert "4 completions of 1 group have no reward yet" in capsys.readouterr().out


def test_functions_that_this_notebook_does_not_have_are_given_to_the_call(capitals, tmp_path):
    scored(capitals, NEVER)
    lab = capitals.lab
    lab._scorers.__init__()  # as after a restart of the kernel
    said = []
    lab.top_up("capitals", say=said.append)
    assert said[-1].startswith(
        "4 completions of 1 group have no reward yet -> %%reward capitals --resume, with the reward function"
    )
    assert sizes(lab.top_up("capitals", 4, lambda answer: 0.0, say=said.append)) == [16, 4]


def test_a_function_of_a_group_scores_it_anew_as_a_whole(capitals):
    def rank(answers):
        return [0.0] * 4 if len(answers) == 4 else [float(i) for i in range(len(answers))]

    capitals.lab.reward("capitals", rank)
    made = capitals.lab.top_up("capitals")
    assert [t.reward for t in made.groups[0].trajectories] == list(range(8))


def test_a_judge_is_asked_again_about_groups_that_have_grown(capitals, monkeypatch):
    sizes_judged = []

    def judged(self, name, rubric="", **options):
        groups = self.collection(name).groups
        sizes_judged.append([len(group.trajectories) for group in groups])
        rewards = {t.name: float(len(group.trajectories) > 4 and t.position) for group in groups
                   for t in group.trajectories}  # fmt: skip
        collection = self.collection(name)
        frame = collection.to_frame()
        frame["reward"] = [rewards[each] for each in frame.index]
        collection.update_rewards(frame)

    monkeypatch.setattr(type(capitals.lab), "judge", judged)
    made = capitals.lab.top_up("capitals", 3, Judge("lab/judge"), say=[].append)
    assert sizes(made) == [8, 8]
    assert sizes_judged == [[4, 4], [8, 8]]


def test_groups_that_train_nothing_for_another_reason_are_left_alone_and_named(notebook, monkeypatch, capsys):
    notebook.run(CHAT)
    scored(notebook, NEVER)
    monkeypatch.setattr(StoredTrajectory, "history_tokens", (0,))  # as of a service without logprobs
    lines(capsys)
    assert sizes(notebook.run(TOP_UP)) == [4, 4]
    assert lines(capsys) == [
        "2 groups of capitals train nothing for reasons that no further completion mends "
        "-> %%train capitals --dry-run names these"
    ]


def test_completions_of_several_checkpoints_in_a_group_are_said(notebook, monkeypatch, capsys):
    notebook.run(CHAT)
    scored(notebook, NEVER)
    # a service that names its checkpoints
    monkeypatch.setattr("rolloutlab.sampling.chat_player._step_of", lambda completion: 7)
    lines(capsys)
    notebook.run(TOP_UP)
    said = "1 group with completions of several checkpoints: capitals/0; their importance ratios are of each one's own"
    assert said in lines(capsys)


class Late:
    """An environment whose episodes are worth something from the fifth of a row on."""

    made = 0

    def __init__(self, row):
        Late.made += 1
        self.worth = float(Late.made > 4)

    def reset(self, seed):
        return "Go."

    def step(self, answer):
        return Step("over", self.worth, done=True)


def test_the_rewards_of_an_environment_come_with_its_episodes(notebook, monkeypatch):
    monkeypatch.setattr(Late, "made", 0)
    notebook.shell.user_ns["Late"] = Late
    notebook.run("%%chat late -n 4 --env Late --max-tokens 4\n")
    assert "--top-up" not in repr(notebook.run("%%train late --dry-run\n"))  # `Late` may be known by another name
    assert sizes(notebook.run("%%chat late --top-up --env Late")) == [8]
    assert [t.reward for t in notebook.lab.collection("late").trajectories] == [0.0] * 4 + [1.0] * 4
    assert "sampled with the environment Late" in notebook.error("%%chat late --top-up 4")


def test_episodes_that_functions_have_not_scored_yet_are_scored_by_them_first(notebook, monkeypatch):
    monkeypatch.setattr(Late, "made", 0)
    notebook.shell.user_ns["Late"] = Late
    stored = notebook.run("%%chat late -n 4 --env Late --max-tokens 4\n").stored
    notebook.run("%%reward late\nreturn {'ten': 10.0}")
    notebook.lab.store.keep_sizes(stored.id, {0: 6}, 6)  # as an interrupted top-up has left it
    notebook.run("%%chat late --resume --env Late")
    assert [t.reward for t in notebook.lab.collection("late").trajectories] == [10.0] * 4 + [1.0] * 2
    assert sizes(notebook.run("%%chat late --top-up --env Late")) == [6]
    assert [t.reward for t in notebook.lab.collection("late").trajectories] == [10.0] * 4 + [11.0] * 2


def test_a_completion_on_which_the_function_fails_does_not_keep_its_group_from_more(notebook, capsys):
    notebook.run(CHAT)
    scored(notebook, "%%reward capitals\nreturn 0.0 if index else 1 / 0")
    lines(capsys)
    assert sizes(notebook.run(TOP_UP)) == [8, 8]


def test_a_program_that_this_notebook_has_run_is_played_again(notebook):
    played = []

    async def solve(row, client):
        await client.chat.completions.create(messages=[{"role": "user", "content": "Go."}], max_tokens=4)
        played.append(row)
        return float(len(played) > 4)

    notebook.lab.rollouts("agent", solve, over=[{"a": 1}], n=4)
    assert sizes(notebook.run("%%chat agent --top-up")) == [8]
    assert sum(t.reward for t in notebook.lab.collection("agent").trajectories) == 4


CELL = """
answer = await client.chat.completions.create(messages=[{"role": "user", "content": "Go."}], max_tokens=4)
played.append(row)
return float(len(played) > 4)
"""


def test_rollouts_are_topped_up_by_their_own_magic(notebook):
    notebook.run("played = []")
    notebook.run(f"%%rollout agent -n 4{CELL}")
    assert "--top-up" not in repr(notebook.run("%%train agent --dry-run\n"))  # a restart would not have the program
    assert sizes(notebook.run("%%rollout agent --top-up")) == [8]
    assert sum(t.reward for t in notebook.lab.collection("agent").trajectories) == 4


def test_rollouts_are_topped_up_by_the_cell_of_their_program_where_the_notebook_does_not_have_it(notebook, monkeypatch):
    notebook.run("played = []")
    notebook.run(f"%%rollout agent -n 4{CELL}")
    monkeypatch.setattr(notebook.lab, "_programs", KnownPrograms())  # as after a restart
    error = notebook.error("%%rollout agent --top-up")
    assert "which this notebook has not run" in error
    assert "%%rollout agent --top-up with the cell or --with the function that it is of" in error
    assert sizes(notebook.run(f"%%rollout agent --top-up{CELL}")) == [8]


def test_a_top_up_of_rollouts_takes_no_other_program_and_no_setting(notebook):
    notebook.run("played = []")
    notebook.run(f"%%rollout agent -n 4{CELL}")
    assert "agent:1 was captured from the cell" in notebook.error(f"%%rollout agent --top-up{CELL}pass")
    assert "--top-up keeps the settings" in notebook.error("%%rollout agent --top-up -n 9")
    assert "--top-up cannot be combined with --resume" in notebook.error("%%rollout agent --top-up --resume")
    notebook.run(CHAT)
    assert "was not captured from a program" in notebook.error(f"%%rollout capitals --top-up{CELL}")


def test_an_interrupted_top_up_goes_on_with_the_same_cell(capitals, monkeypatch, capsys):
    scored(capitals, NEVER)
    first = iter([True])

    async def breaks(http, address, request, tries=None):
        if next(first, False):
            return await complete(http, address, request, tries)
        return await asyncio.Event().wait()

    def note(self, waits=False):
        if self.done:
            raise KeyboardInterrupt
        return ""

    with monkeypatch.context() as patch:
        patch.setattr("rolloutlab.sampling.rollout._MAX_N", 2)  # so that the four are two requests
        patch.setattr("rolloutlab.sampling.sending.complete", breaks)
        patch.setattr(TrajectoryWriter, "note", note)
        with pytest.raises(KeyboardInterrupt) as caught:
            capitals.run(f"{TOP_UP} --concurrency 1")
    assert caught.value.__notes__ == [
        "2 of 4 completions had arrived and are kept", "  -> %%chat capitals:1 --resume samples the other 2",
    ]  # fmt: skip
    assert capitals.lab.store.collection("capitals").missing == 2
    capsys.readouterr()
    capitals.run(f"{TOP_UP} 2")
    assert "first, 2 completions that capitals lacks\n" in capsys.readouterr().out
    assert capitals.lab.store.collection("capitals").missing == 0
    made = capitals.lab.collection("capitals")
    assert sizes(made) == [8, 4]
    assert [t.reward for t in made.groups[0].trajectories] == [0.0] * 8


def test_a_top_up_that_never_began_leaves_nothing_missing(capitals, monkeypatch):
    scored(capitals, NEVER)

    async def fails(http, address, request, tries=None):
        raise RefusedError("too much")

    with monkeypatch.context() as patch:
        patch.setattr("rolloutlab.sampling.sending.complete", fails)
        assert "too much" in capitals.error(TOP_UP)
    assert capitals.lab.store.collection("capitals").missing == 0


def test_a_dry_run_shows_what_would_be_sampled(capitals):
    scored(capitals, NEVER)
    shown = repr(capitals.run(f"{TOP_UP} 1.5 --dry-run"))
    assert shown.startswith("2 trajectories, beginning with 1 request; the first:")
    assert "Capital of France?" in shown
    assert sizes(capitals.lab.collection("capitals")) == [4, 4]


def test_others_are_compared_and_continued_as_before(capitals):
    scored(capitals, LATE)
    capitals.run(TOP_UP)
    again = capitals.run("%%chat capitals --continue\nuser: Sure?")
    assert sizes(again) == [8, 4]
    assert again.missing == 0
    assert "goes on with the conversations of capitals:1" in capitals.error(TOP_UP)
    capitals.lab.compare("capitals:1", lambda answer: len(answer), before=0, after=0)
    made = [each for each in capitals.lab.store.collections() if each.name.startswith("compare.")]
    assert [(each.trajectories, each.missing) for each in made] == [(8, 0)]


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (TOP_UP, "nothing of capitals is scored yet: which of its groups have nothing to learn is not known"),
        (f"{TOP_UP} 1", "a factor of the first sampling is a number above 1, up to 10,000, not 1.0\n  -> --top-up 2"),
        (f"{TOP_UP} nan", "a number above 1, up to 10,000, not nan"),
        (f"{TOP_UP} 1.1", "1.1 times 4 completions of a group are no further one\n  -> --top-up 1.25 or more"),
        (f"{TOP_UP} -n 2", "--top-up keeps the settings of the collection and cannot take -n"),
        (f"{TOP_UP}\nuser: hi", "cannot take a text"),
        (f"{TOP_UP} --resume", "--top-up cannot be combined with --resume"),
        (f"{TOP_UP} --continue", "--top-up cannot be combined with --continue"),
        ("%%chat nothing --top-up", "there is no collection 'nothing'"),
    ],
)
def test_what_cannot_be_topped_up_is_named_with_what_to_type(capitals, cell, shown):
    assert shown in capitals.error(cell)
    assert sizes(capitals.lab.collection("capitals")) == [4, 4]


def test_completions_that_would_be_the_same_again_are_refused(notebook):
    notebook.run(CHAT.replace("--seed 1", "--seed 1 --temperature 0"))
    scored(notebook, NEVER)
    assert "sampled at temperature 0: every further completion would be the same" in notebook.error(TOP_UP)


def test_what_was_imported_is_refused(capitals, tmp_path):
    scored(capitals, NEVER)
    capitals.run(f"%export capitals {tmp_path}/out.jsonl")
    capitals.run(f"%import {tmp_path}/out.jsonl others")
    assert "others was not sampled here" in capitals.error("%%chat others --top-up")


WHOLE = CHAT.replace("--max-tokens 4", "--max-tokens 100")  # else the advice is a larger --max-tokens


def advised(notebook, names):
    """The cells of top-ups that the report of a job advises, which has one for each reason."""
    report = repr(notebook.run(f"%%train {names} --dry-run\n"))
    return [cell for line in report.splitlines() for cell in re.findall(r"%%chat \S+ --top-up", line)]


def test_the_report_of_a_job_advises_the_top_up_of_the_generation_that_has_the_groups(capitals):
    capitals.run(WHOLE)
    scored(capitals, LATE)
    capitals.run(CHAT)
    assert advised(capitals, "capitals:2") == ["%%chat capitals:2 --top-up"]
    assert sizes(capitals.run("%%chat capitals:2 --top-up")) == [8, 4]
    assert advised(capitals, "capitals:2") == []


def test_the_report_of_a_job_advises_the_top_up_of_the_collections_that_have_the_groups(capitals):
    scored(capitals, "%%reward capitals\nreturn float(index % 2)")
    capitals.run(WHOLE.replace("capitals", "other"))
    scored(capitals, LATE.replace("capitals", "other"))
    assert advised(capitals, "capitals other") == ["%%chat other --top-up"]
    capitals.run(WHOLE.replace("capitals", "third"))
    scored(capitals, LATE.replace("capitals", "third"))
    assert advised(capitals, "capitals other third") == ["%%chat other --top-up", "%%chat third --top-up"]
    capitals.run("%%chat other --top-up")
    assert advised(capitals, "capitals other third") == ["%%chat third --top-up"]


def test_what_is_left_is_said_with_the_factor_that_the_groups_have(capitals, capsys):
    scored(capitals, NEVER)
    capitals.run(f"{TOP_UP} 4")
    lines(capsys)
    capitals.run(TOP_UP)
    (line,) = lines(capsys)
    assert line.endswith("with 4 times as many completions as at first -> %%chat capitals --top-up 8, or other rows")
    assert sizes(capitals.run(f"{TOP_UP} 8")) == [32, 4]


def capital(answer, city):
    """A reward function of a column that there is not."""


@pytest.mark.parametrize("reward", ["exact", 1, [], capital])
def test_a_reward_that_cannot_score_is_refused_before_anything_is_sampled(capitals, reward):
    scored(capitals, LATE)
    with pytest.raises(InputError):
        capitals.lab.top_up("capitals", 2, reward)
    assert sizes(capitals.lab.collection("capitals")) == [4, 4]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 10, 12, 16, 64, 300, 10_000])
def test_the_least_factor_that_a_hint_names_gives_a_further_completion(n):
    with pytest.raises(InputError, match="no further one") as refused:
        check_factor(1 + 0.5 / n, n)
    factor = float(str(refused.value.hint).split()[1])
    check_factor(factor, n)
    assert factor <= 1 + 1 / n + 0.01


def test_a_dry_run_says_what_it_cannot_know_before_all_is_scored(capitals):
    assert capitals.error(f"{TOP_UP} --dry-run") == (
        "InputError: 8 completions of capitals have no reward yet: what a top-up samples depends on them\n"
        "  -> %%reward capitals"
    )


@pytest.mark.parametrize("factor", ["1e308", "10001", "inf"])
def test_a_factor_that_nobody_would_pay_for_is_refused(capitals, factor):
    scored(capitals, NEVER)
    assert "a number above 1, up to 10,000" in capitals.error(f"{TOP_UP} {factor}")


def test_a_loop_at_temperature_0_is_refused_before_it_samples(capitals):
    with pytest.raises(InputError, match="at temperature 0 every further completion"):
        capitals.lab.loop("cold", "Go.", lambda answer: 1.0, over=[{}], n=2, top_up=2, temperature=0)
    assert "cold" not in {c.name for c in capitals.lab.store.collections()}
