"""Runs of a lab: what belongs to one, its numbers, its best checkpoint, and how it is named."""

import math
import re
import sqlite3
from contextlib import closing

import pandas as pd
import pytest

from rolloutlab.cli.commands import main
from rolloutlab.errors import InputError, NotFoundError
from rolloutlab.store.origins import Origin

HALF = [[0.0, 1.0], [1.0, 0.0]]
BETTER = [[1.0, 1.0], [1.0, 0.0]]


def two_steps(trainer, name="letters", model="lab/practice", **options):
    first = trainer.sample(name, HALF, model=model)
    trainer.train(first, step=1, model=model, options=options)
    second = trainer.sample(name, BETTER, step=1, model=model)
    trainer.train(second, step=2, model=model, options=options)


def test_a_lab_without_jobs_has_no_runs(session):
    assert len(session.runs()) == 0
    assert "none yet" in repr(session.runs())
    with pytest.raises(NotFoundError, match="no job of this lab has made a checkpoint"):
        session.runs("lab/practice")


def test_the_jobs_of_a_model_are_the_steps_of_a_run(session, trainer):
    two_steps(trainer)
    (run,) = session.runs()
    assert (run.name, run.model) == ("lab/practice", "lab/practice")
    assert [step.step for step in run.steps] == [0, 1]
    assert run.history["reward"].tolist() == [0.5, 0.75]
    assert run.history["nothing"].tolist() == [0.0, 0.5]
    assert run.best == "lab/practice@1"


def test_numbers_of_jobs_and_of_answers_stand_beside_each_other(session, trainer):
    first = trainer.sample("letters", HALF, components=lambda r: {"format": r / 2})
    trainer.train(first, step=1, steps=[{"entropy": 1.0, "kl": 0.0}, {"entropy": 0.5, "kl": 0.2}, {"kl": 0.4}])
    numbers = session.runs()[0].steps[0].numbers
    assert numbers["entropy"] == 0.75
    assert numbers["kl"] == 0.2  # the median
    assert numbers["reward.format"] == 0.25
    assert numbers["pass_rate"] == 0.5
    assert numbers["seconds"] == 2.5
    assert numbers["tokens"] == numbers["length"] * 4


def test_held_out_rows_decide_the_best_checkpoint(session, trainer):
    for step, held in enumerate([HALF, BETTER, HALF]):
        trainer.sample("held_out.letters", held, step=step)
        if step < 2:
            trainer.train(trainer.sample("letters", BETTER, step=step), step=step + 1)
    trainer.sample("best.letters", BETTER, step=1)
    (run,) = session.runs()
    assert [step.step for step in run.steps] == [0, 1, 2]
    assert run.history["held_out"].tolist() == [0.5, 0.75, 0.5]
    assert (run.main, run.best, run.best_mean) == ("held_out", "lab/practice@1", 0.75)
    assert run.before.numbers["held_out"] == 0.5


def test_another_reward_begins_a_new_run_of_the_model(session, trainer):
    two_steps(trainer)
    hundreds = [[100.0, 0.0], [100.0, 100.0]]
    trainer.train(trainer.sample("letters", hundreds, step=2, code="v2"), step=3)
    newest, first = session.runs()
    assert (newest.name, newest.because, newest.best) == ("lab/practice", ("reward",), "lab/practice@2")
    assert (first.name, first.because, first.best) == ("lab/practice:1", (), "lab/practice@1")
    assert "the reward was changed" in repr(session.runs("lab/practice"))
    assert session.runs("lab/practice:1").runs[0].history["reward"].max() == 0.75


@pytest.mark.parametrize(
    ("change", "because"),
    [({"template": [[{"role": "user", "content": "other"}]]}, "prompt"), ({"env": "Maze"}, "env")],
)
def test_another_prompt_or_environment_begins_a_new_run(session, trainer, change, because):
    two_steps(trainer)
    trainer.train(trainer.sample("letters", HALF, step=2, **change), step=3)
    assert session.runs()[0].because == (because,)


def test_other_held_out_rows_begin_a_new_run(session, trainer):
    for step, rows in enumerate(["row", "other"]):
        trainer.sample("held_out.letters", HALF, step=step, rows=rows)
        trainer.train(trainer.sample("letters", HALF, step=step), step=step + 1)
    assert session.runs()[0].because == ("held-out rows",)
    assert "as the held-out rows were changed:" in repr(session.runs("lab/practice"))


def test_a_checkpoint_is_not_compared_with_itself(session, trainer):
    for step, code, held in ((0, "v1", HALF), (1, "v1", BETTER), (1, "v2", BETTER)):
        trainer.sample("held_out.letters", held, step=step, code=code)
        if (step, code) != (1, "v1"):  # the run of v1 ends at checkpoint 1, where that of v2 begins
            trainer.train(trainer.sample("letters", HALF, step=step, code=code), step=step + 1)
    newest, first = session.runs()
    assert newest.best == first.best == "lab/practice@1"
    cells = session.runs("lab/practice", "lab/practice:1").overlay().next
    assert [cell for cell in cells if cell.startswith("%compare")] == []
    assert "%export lab/practice@1 --to best" in cells


def test_several_changes_that_begin_a_run_were_made(session, trainer):
    for step, code in enumerate(["v1", "v2"]):
        trainer.sample("held_out.letters", HALF, step=step, code=code)
        trainer.train(trainer.sample("letters", HALF, step=step, code=code), step=step + 1)
    assert "as the reward was changed:" in repr(session.runs("lab/practice"))


def test_other_rows_to_train_on_and_another_temperature_do_not_begin_a_run(session, trainer):
    trainer.train(trainer.sample("letters", HALF), step=1, options={"learning_rate": 1e-3})
    trainer.train(trainer.sample("letters", HALF, step=1, rows="x", temperature=0.5), step=2)
    (run,) = session.runs()
    changed = {(each.step, each.option, each.before, each.after) for each in run.changes}
    assert changed == {(1, "temperature", None, 0.5), (1, "learning_rate", 1e-3, None)}


def test_means_with_other_sampling_settings_are_not_the_best(session, trainer):
    trainer.train(trainer.sample("letters", [[1.0, 1.0]], max_tokens=4), step=1)
    trainer.train(trainer.sample("letters", HALF, step=1), step=2)
    trainer.train(trainer.sample("letters", BETTER, step=2), step=3)
    assert session.runs()[0].best == "lab/practice@2"


def test_iterations_under_other_names_with_one_reward_are_one_run(session, trainer):
    trainer.train(trainer.sample("letters1", HALF), step=1)
    trainer.train(trainer.sample("letters2", BETTER, step=1), step=2)
    assert len(session.runs()) == 1


def test_failed_jobs_and_checkpoints_of_others_are_named(session, trainer):
    two_steps(trainer)
    trainer.train(trainer.sample("letters", HALF, step=2), step=None, status="failed")
    trainer.train(trainer.sample("letters", BETTER, step=4), step=5)
    facts = [sign.fact for sign in session.runs()[0].signs]
    assert "2 checkpoints since step 2 not made by jobs of this lab" in facts
    assert "1 job made no checkpoint, the last one failed" in facts


def test_completions_of_a_top_up_do_not_count(session, trainer):
    made = trainer.sample("letters", [[0.0, 0.0, 1.0, 1.0], [1.0, 0.0]], n=2)
    session.store.keep_sizes(made.id, {0: 4}, 6)
    trainer.train(made, step=1)
    assert session.runs()[0].steps[0].numbers["reward"] == 0.25


def test_a_deleted_generation_leaves_its_step(session, trainer):
    two_steps(trainer)
    session.delete("letters:1", say=lambda _: None)
    assert [step.numbers.get("reward") for step in session.runs()[0].steps] == [None, 0.75]


def test_a_run_whose_collections_were_deleted_is_shown_without_texts(session, trainer, tmp_path):
    two_steps(trainer)
    session.delete("letters:1", say=lambda _: None)
    session.delete("letters:2", say=lambda _: None)
    html = session.runs("lab/practice")._repr_html_()
    assert "lab/practice" in html
    assert '<div class="rl-texts">' not in html
    assert "lab/practice" in session.report("lab/practice", tmp_path / "run.html").read_text()


@pytest.mark.parametrize("name", ["practice", "letters", "lab/prac*", "lab/practice"])
def test_a_run_is_named_by_model_collection_or_pattern(session, trainer, name):
    two_steps(trainer)
    assert [run.name for run in session.runs(name).runs] == ["lab/practice"]


def test_a_wrong_or_ambiguous_name_says_what_there_is(session, trainer):
    two_steps(trainer)
    two_steps(trainer, model="lab/second")
    with pytest.raises(NotFoundError) as error:
        session.runs("lab/practise")
    assert error.value.hint == "%runs lab/practice"
    with pytest.raises(NotFoundError, match="may be 2 runs: lab/second, lab/practice"):
        session.runs("letters")


def test_several_runs_show_what_differs(session, trainer):
    two_steps(trainer, learning_rate=1e-3)
    two_steps(trainer, model="lab/second", learning_rate=2e-3)
    shown = session.runs("lab/practice", "lab/second")
    html = shown._repr_html_()
    assert "learning_rate" in html
    assert "0.002" in html
    assert "2 runs" in repr(shown)


def test_notes_and_tags_are_kept_for_every_kernel(session, trainer):
    two_steps(trainer)
    run = session.runs()[0]
    run.note, run.tags = "steady", ["keep", "keep", "first"]
    again = session.runs()[0]
    assert (again.note, again.tags) == ("steady", ("keep", "first"))
    assert "steady" in repr(session.runs())


def test_the_list_is_a_frame_too(session, trainer):
    two_steps(trainer)
    frame = session.runs().frame
    assert frame.loc["lab/practice", ["before", "best", "gain", "steps"]].tolist() == [0.5, 0.75, 0.25, 2]
    assert isinstance(frame, pd.DataFrame)


def test_texts_of_a_step_are_the_best_the_worst_and_what_changed(session, trainer):
    for step, held in enumerate([[[0.0, 1.0], [0.0, 0.5]], [[0.0, 1.0], [1.0, 0.25]]]):
        trainer.sample("held_out.letters", held, step=step)
        trainer.train(trainer.sample("letters", HALF, step=step), step=step + 1)
    view = session.runs("lab/practice")
    ask = view.calls()["texts"]
    assert "answer 0.1" in str(ask(1, "best")["texts"])
    assert "answer 0.0" in str(ask(1, "worst")["texts"])
    changed = str(ask(1, "changed")["texts"])
    assert "answer 1.0" in changed
    assert "+1.00" in changed.replace("\N{MINUS SIGN}", "-")
    assert ask(1, "random", 0) == ask(1, "random", 4)
    assert ask(7, "random")["texts"] == []


def test_a_view_sees_what_another_kernel_adds(session, trainer):
    two_steps(trainer)
    view = session.runs("lab/practice")
    version = view.state()["version"]
    assert view.calls()["renewed"](version) is None
    trainer.train(trainer.sample("letters", BETTER, step=2), step=3)
    assert view.calls()["renewed"](version)["courses"][0]["steps"] == [0, 1, 2]


def test_a_report_is_one_file_that_needs_no_network(session, trainer, tmp_path):
    two_steps(trainer)
    path = session.report("lab/practice", tmp_path / "run.html")
    page = path.read_text()
    assert "answer 0.0" in page
    assert "function that scored letters:1" in page
    without_names = page.replace("http://www.w3.org/2000/svg", "").replace("http%3A//www.w3.org/2000/svg", "")
    assert not [part for part in ("<script", "http://", "https://", "url(") if part in without_names]
    with pytest.raises(InputError, match="is there already"):
        session.report("lab/practice", path)


def test_a_report_prints_whole(session, trainer, tmp_path):
    parts = {f"part{i}": 1 / 3 for i in range(20)}
    for step in range(4):
        made = trainer.sample("letters", HALF, step=step, components=lambda _: parts, template=[[{"role": "user"}]])
        trainer.train(made, step=step + 1, options={"learning_rate": 1e-3 / (step + 1)})
    page = session.report("lab/practice", tmp_path / "run.html").read_text()
    assert "<details" not in page  # what is folded would not be printed
    assert ":root { color-scheme: light dark; }" in page
    tables = re.findall("<table.*?</table>", page, re.DOTALL)
    numbers = [table for table in tables if 'aria-label="numbers of lab/practice' in table]
    assert len(numbers) > 3
    assert max(len(re.findall("<th[ >]", table)) for table in numbers) == 8
    assert all("part" not in table or ">0.333333<" in table for table in numbers)
    assert sum(f">part{i}, trained on</th>" in table for table in numbers for i in range(20)) == 20


def test_a_report_has_options_and_numbers_with_their_digits(session, trainer, tmp_path):
    rate, name = 0.000123456789, "a name of more than twenty-four characters"
    for step in range(2):
        made = trainer.sample("letters", HALF, step=step)
        numbers = [{"loss": 1e-11, "grad_norm": 0.123456789}]
        trainer.train(made, step=step + 1, options={"learning_rate": rate / (2 - step), "loss": name}, steps=numbers)
    page = session.report("lab/practice", tmp_path / "run.html").read_text()
    for written in (repr(rate), repr(rate / 2), name, "1e-11", "0.123457"):
        assert f">{written}</td>" in page
    opened = session.runs("lab/practice")._repr_html_()
    assert f"<span>learning_rate {rate!r}</span>" in opened
    assert f"<span>from step 1: learning_rate {rate!r} instead of {rate / 2!r}</span>" in opened
    assert f"<span>loss {name}</span>" in opened


def test_a_report_says_what_the_model_and_the_environment_were(session, trainer, tmp_path):
    folder = session.settings.service_folder
    folder.mkdir(parents=True)
    with closing(sqlite3.connect(folder / "service.db")) as database:
        database.execute("CREATE TABLE models AS SELECT 'lab' AS project, 'first' AS name, 'practice' AS base_model")
    for model in ("lab/first", "lab/unknown"):
        trainer.train(trainer.sample("letters", HALF, model=model, env="Maze"), step=1, model=model)
    trainer.train(
        trainer.sample("calls", HALF, program="solve", model="lab/unknown", step=1), step=2, model="lab/unknown"
    )
    session.store.origins.set("embedded", "lab/unknown", Origin(made_from="lab/first@1"))
    page = session.report(["lab/first", "lab/unknown:1", "lab/unknown"], tmp_path / "run.html").read_text()
    facts = {"environment of letters": "Maze", "program of calls": "solve", "base of lab/first": "practice"}
    for what, value in {**facts, "checkpoint that lab/unknown was made from": "lab/first@1"}.items():
        assert f'<td align="left">{what}</td><td align="left">{value}</td>' in page
    assert "base of lab/unknown" not in page


def test_a_report_is_written_in_a_terminal(session, trainer, tmp_path, capsys):
    two_steps(trainer)
    out = tmp_path / "out.html"
    assert main(["report", "--home", str(session.settings.home), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert out.exists()


def test_a_report_of_a_lab_without_runs_is_an_error_in_a_terminal(session, tmp_path, capsys):
    assert len(session.runs()) == 0
    assert main(["report", "--home", str(session.settings.home), "--out", str(tmp_path / "out.html")]) == 2
    printed = capsys.readouterr().err
    assert "this lab has no run" in printed
    assert "-> in a notebook: %%train NAME" in printed


def test_a_folder_without_a_lab_is_an_error_in_a_terminal_and_stays_as_it_is(tmp_path, capsys):
    assert main(["report", "--home", str(tmp_path / "none")]) == 2
    printed = capsys.readouterr().err
    assert f"there is no lab in {tmp_path / 'none'}" in printed
    assert "-> --home DIR" in printed
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_name_in_a_terminal_says_the_command_to_type(session, trainer, tmp_path, capsys):
    two_steps(trainer)
    home, out = str(session.settings.home), str(tmp_path / "out.html")
    assert main(["report", "nope", "--home", home, "--out", out]) == 2
    hint = capsys.readouterr().err.partition("-> ")[2].strip()
    assert hint == f"rolloutlab report lab/practice --home {home} --out {out}"
    assert main(hint.split()[1:]) == 0


def test_runs_of_several_seeds_are_one_course_with_a_band(session, trainer):
    for seed, rewards in enumerate([HALF, BETTER, HALF]):
        model = f"lab/practice.letters.seed{seed}"
        session.store.origins.set("embedded", model, Origin(sweep="letters", settings={}, seed=seed))
        trainer.train(trainer.sample(f"letters.seed{seed}", HALF, model=model), step=1, model=model)
        trainer.train(trainer.sample(f"letters.seed{seed}", rewards, step=1, model=model), step=2, model=model)
    (course,) = session.runs("lab/practice.letters.*").state()["courses"]
    assert (course["name"], len(course["members"])) == ("letters", 3)
    assert course["numbers"]["reward"] == [0.5, pytest.approx((0.5 + 0.75 + 0.5) / 3)]
    assert (course["lows"]["reward"], course["highs"]["reward"]) == ([0.5, 0.5], [0.5, 0.75])
    assert "0.583 (0.5 to 0.75) at 1" in session.runs("lab/practice.letters.*")._repr_html_()


def test_the_answer_of_a_text_is_without_its_prompt(session, trainer):
    trainer.train(trainer.sample("letters", HALF), step=1)
    texts = str(session.runs("lab/practice").calls()["texts"](0, "best")["texts"])
    assert texts.count("Question 0?") == 1


def test_a_comparison_takes_the_best_checkpoints_of_runs(session):
    given = {"over": [{"i": i} for i in range(2)], "n": 2, "max_tokens": 3, "jobs": 1, "seed": 1, "say": lambda _: None}
    for name in ("first", "second"):
        session.model(f"lab/{name}")
        session.loop(name, "user: {{i}}", lambda answer: float(len(answer)), **given)
    runs = session.runs()
    made = session.compare("first", lambda answer: float(len(answer)), checkpoints=[runs["lab/first"], "lab/second@1"])
    assert made.describe()["checkpoints"] == [runs["lab/first"].best, "lab/second@1"]
    named = session.compare("first", lambda answer: float(len(answer)), checkpoints=["first", "second"], best=True)
    assert named.describe()["checkpoints"] == [run.best for run in (runs["lab/first"], runs["lab/second"])]


def test_a_run_without_a_mean_has_no_best_checkpoint_to_compare(session, trainer):
    trainer.train(step=1)
    with pytest.raises(InputError, match="lab/practice has no best checkpoint"):
        session.compare("letters", checkpoints=[session.runs()[0], "lab/practice@1"])


def test_rewards_of_three_steps_are_one_chart_that_names_the_runs_once(session, trainer):
    for model in ("lab/one", "lab/other"):
        for step in range(3):
            trainer.sample("held_out.letters", HALF, step=step, model=model)
            trainer.train(trainer.sample("letters", BETTER, step=step, model=model), step=step + 1, model=model)
    html = session.runs("lab/one", "lab/other")._repr_html_()
    assert html.count('<div class="rl-legend">') == 1
    assert "Dashed: mean reward, trained on." in html
    assert html.count("<figcaption><span>Mean reward") == 1


def hand(trainer, name, rewards, **plan):
    """A generation whose rewards came from no function of this lab, as of an import."""
    made = trainer.sample(name, rewards, **plan)
    trainer.lab._database.execute("DELETE FROM scorings WHERE collection_id = ?", made.id)
    return made


@pytest.mark.parametrize("how", ["fine-tuning", "an import"])
def test_a_job_whose_rewards_are_of_no_known_function_belongs_to_the_run(session, trainer, how):
    two_steps(trainer)
    if how == "fine-tuning":
        trainer.train(trainer.sample("demos", HALF, step=2, code="v9"), step=3, options={"sft": True})
    else:
        trainer.train(hand(trainer, "imported", HALF, step=2), step=3)
    trainer.train(trainer.sample("letters", BETTER, step=3), step=4)
    (run,) = session.runs()
    assert [step.step for step in run.steps] == [0, 1, 2, 3]


def test_a_model_that_was_made_anew_has_another_run(session, trainer):
    two_steps(trainer)
    two_steps(trainer)
    newest, first = session.runs()
    assert newest.because == ("model",)
    assert [[step.step for step in run.steps] for run in (first, newest)] == [[0, 1], [0, 1]]
    newest.to_csv(session.settings.home / "run.csv")


def test_jobs_that_end_in_another_order_are_one_run_by_step(session, trainer):
    made = trainer.sample("letters", HALF)
    for step in (2, 1, 3):
        trainer.train(made, step=step)
    (run,) = session.runs()
    assert [step.step for step in run.steps] == [0, 1, 2]
    assert (run.seconds, run.hours()) == (2, [1 / 3600, 1 / 3600, 2 / 3600])


def test_rewards_of_another_checkpoint_are_not_those_of_a_step(session, trainer):
    first = trainer.sample("letters", BETTER)
    trainer.train(first, step=1)
    trainer.train(first, step=2)
    trainer.train(trainer.sample("letters", HALF, step=2), step=3)
    (run,) = session.runs()
    assert run.history["reward"].dropna().to_dict() == {0: 0.75, 2: 0.5}
    assert run.history["other_reward"].dropna().to_dict() == {1: 0.75}
    assert run.best == "lab/practice@0"


def test_a_stray_measurement_on_held_out_rows_changes_no_run(session, trainer):
    for step, held in enumerate([HALF, BETTER, HALF]):
        trainer.sample("held_out.letters", held, step=step)
        if step == 1:
            trainer.sample("held_out.letters", [[1.0, 1.0]], step=1, rows="one other")
        if step < 2:
            trainer.train(trainer.sample("letters", HALF, step=step), step=step + 1)
    (run,) = session.runs()
    assert run.history["held_out"].tolist() == [0.5, 0.75, 0.5]


def in_turns(trainer, names, held, rows=lambda name: "row"):
    """Rounds of a loop of each name: its held-out rows, then a job on its own rows; `held` are the held-out rewards."""
    for step, (name, rewards) in enumerate(zip(names, held, strict=True)):
        trainer.sample(f"held_out.{name}", rewards, step=step, rows=rows(name))
        trainer.train(trainer.sample(name, HALF, step=step), step=step + 1)


@pytest.mark.parametrize("names", [["first", "first", "second", "second"], ["first", "second", "first", "second"]])
def test_a_loop_of_another_name_with_the_same_held_out_rows_goes_on_with_the_run(session, trainer, names):
    in_turns(trainer, names, [HALF, HALF, BETTER, HALF])
    trainer.sample("best.second", BETTER, step=2)
    (run,) = session.runs()
    assert run.history["held_out"].tolist() == [0.5, 0.5, 0.75, 0.5]
    assert (run.best, run.best_mean) == ("lab/practice@2", 0.75)


def test_a_loop_of_another_name_with_other_held_out_rows_begins_a_run(session, trainer):
    in_turns(trainer, ["first", "first", "second", "second"], [HALF, HALF, BETTER, HALF], rows=lambda name: name)
    newest, first = session.runs()
    assert (newest.because, newest.best) == (("held-out rows",), "lab/practice@2")
    assert first.history["held_out"].tolist() == [0.5, 0.5]


def test_loops_that_take_turns_with_other_held_out_rows_begin_a_run_each_time(session, trainer):
    in_turns(trainer, ["first", "second", "first"], [HALF, BETTER, HALF], rows=lambda name: name)
    runs = session.runs()
    assert [run.because for run in runs] == [("held-out rows",), ("held-out rows",), ()]
    assert [run.history["held_out"].tolist() for run in runs] == [[0.5], [0.75], [0.5]]


def test_a_change_of_the_held_out_rows_stays_a_run_when_it_is_undone(session, trainer):
    held = {0: ["one"], 1: ["one", "other"], 2: ["other", "one"], 3: ["one"]}
    for step, names in held.items():
        for rows in names:
            trainer.sample("held_out.letters", HALF, step=step, rows=rows)
        trainer.train(trainer.sample("letters", HALF, step=step), step=step + 1)
    assert {run.name: (run.because, run.steps[0].step) for run in session.runs()} == {
        "lab/practice:1": ((), 0),
        "lab/practice:2": (("held-out rows",), 1),
        "lab/practice": (("held-out rows",), 2),
    }


def test_a_job_without_held_out_rows_goes_on_with_the_run(session, trainer):
    in_turns(trainer, ["first", "first"], [HALF, BETTER])
    trainer.sample("held_out.second", HALF, step=2, rows="other")
    trainer.train(trainer.sample("third", HALF, step=2), step=3)
    (run,) = session.runs()
    assert run.history["held_out"].tolist()[:2] == [0.5, 0.75]


def test_of_a_job_on_two_collections_one_may_not_be_measured(session, trainer):
    for name in ("one", "two", "one"):
        trainer.sample(f"held_out.{name}", HALF, step=0, rows=name)
    trainer.train(trainer.sample("one", HALF), trainer.sample("two", HALF), step=1)
    trainer.sample("held_out.one", HALF, step=1, rows="one")
    trainer.train(trainer.sample("one", HALF, step=1), trainer.sample("two", HALF, step=1), step=2)
    (run,) = session.runs()
    assert run.history["held_out"].notna().tolist() == [True, False]


def test_a_model_and_a_run_of_another_model_have_names_of_their_own(session, trainer):
    two_steps(trainer)
    trainer.train(trainer.sample("letters", HALF, step=2, code="v2"), step=3)
    two_steps(trainer, model="lab/practice:1")
    two_steps(trainer, model="lab/practice:2")
    names = [run.name for run in session.runs()]
    assert names == ["lab/practice:2", "lab/practice:1", "lab/practice", "lab/practice:1:"]
    assert [session.runs(name).runs[0].model for name in names] == [*names[:2], "lab/practice", "lab/practice"]
    assert len({run.table().name for run in session.runs()}) == 4


def test_a_service_that_numbers_checkpoints_from_0_has_a_step_for_each(session, trainer):
    for step in range(3):
        trainer.train(trainer.sample("letters", HALF, step=step - 1), step=step)
    (run,) = session.runs()
    assert [step.step for step in run.steps] == [-1, 0, 1]
    run.to_csv(session.settings.home / "run.csv")


def test_cells_to_type_next_quote_a_name_with_blanks(session, trainer):
    model = "lab/of others"
    trainer.sample("held_out.letters", BETTER, model=model)
    two_steps(trainer, model=model)
    assert "%runs 'lab/of others'" in repr(session.runs())
    assert "%export 'lab/of others@0' --to best" in session.runs(model).overlay().next


def test_parts_of_rewards_that_are_no_texts_hide_nothing_else(session, trainer):
    def components(reward):
        return {"half \ud800": reward, "whole": 2 * reward}

    odd = trainer.sample("odd", HALF, model="lab/odd", components=components)
    trainer.train(odd, step=1, model="lab/odd")
    two_steps(trainer)
    with closing(sqlite3.connect(session.settings.home / "lab.db")) as database, database:
        database.execute("UPDATE trajectories SET components = '{\"a\": Infinity}' WHERE position = 1")
    steps = session.runs()["lab/odd"].steps
    (half,) = (name for name in steps[0].numbers if name.startswith("reward.half"))
    assert (half.encode(), steps[0].numbers["reward.whole"]) == ("reward.half \ufffd\ufffd\ufffd".encode(), 1.0)
    assert len(session.runs()) == 2


def test_a_run_says_which_checkpoint_its_model_was_made_from(session, tmp_path):
    given = {"over": [{"i": 1}, {"i": 2}], "n": 4, "max_tokens": 3, "seed": 1, "say": lambda _: None}

    def reward(answer):
        return float(len(answer) % 2)

    def loop(jobs):
        return session.loop("letters", "user: {{i}}", reward, jobs=jobs, **given)

    loop(2)
    session.model("lab/fork", start="lab/practice@1")
    loop(1)
    (run,) = session.runs("lab/fork").runs
    assert run.made_from == "lab/practice@1"
    assert "lab/fork was made from lab/practice@1." in repr(session.runs("lab/fork"))
    assert "lab/practice@1" in session.runs()._repr_html_()
    report = session.report("lab/fork", tmp_path / "run.html").read_text()
    assert "checkpoint that lab/fork was made from" in report
    session.model("lab/practice")
    assert session.runs("lab/practice").runs[0].made_from is None


def test_an_option_that_becomes_true_is_changed_and_not_a_number_is_not(session, trainer):
    trainer.train(trainer.sample("letters", HALF), step=1, options={"a": 1, "b": math.nan})
    trainer.train(trainer.sample("letters", HALF, step=1), step=2, options={"a": True, "b": math.nan})
    assert [each.option for each in session.runs()[0].changes] == ["a"]


def test_a_measured_checkpoint_before_a_gap_is_a_step(session, trainer):
    for step, held in ((0, HALF), (1, BETTER)):
        trainer.sample("held_out.letters", held, step=step)
    trainer.train(trainer.sample("letters", HALF), step=1)
    trainer.train(trainer.sample("letters", HALF, step=5), step=6)
    assert session.runs()[0].best == "lab/practice@1"


def test_services_with_a_model_of_one_name_have_runs_of_their_own(session, trainer):
    two_steps(trainer)
    trainer.service = "https://other.example"
    trainer.sample("held_out.letters", BETTER, step=0)
    trainer.train(trainer.sample("letters", HALF), step=None, status="failed")
    trainer.train(trainer.sample("letters", HALF), step=1)
    own = {run.service: run for run in session.runs()}
    assert own["https://other.example"].name == "lab/practice"
    assert "held_out" not in own["embedded"].history
    assert [len(run.record.failed) for run in (own["embedded"], own["https://other.example"])] == [0, 1]
    trainer.service = "embedded"
    trainer.train(trainer.sample("letters", HALF, step=2), step=3)
    assert [(run.name, run.service) for run in session.runs()] == [
        ("lab/practice", "embedded"),
        ("lab/practice:2", "https://other.example"),
    ]


def test_a_pass_rate_begins_at_0_and_is_there_only_if_anything_passes(session, trainer):
    trainer.train(trainer.sample("letters", [[0.0, 0.0]]), step=1)
    trainer.train(trainer.sample("letters", [[1.0, 0.0]], step=1), step=2)
    trainer.train(trainer.sample("tenths", [[0.1, 0.2]], model="lab/other"), step=1, model="lab/other")
    runs = session.runs()
    assert runs["lab/practice"].history["pass_rate"].tolist() == [0.0, 0.5]
    assert "pass_rate" not in runs["lab/other"].history


def test_groups_of_several_collections_count_alike(session, trainer):
    dead, live = trainer.sample("dead", [[1.0] * 100]), trainer.sample("live", HALF * 2)
    trainer.train(dead, live, step=1)
    assert session.runs()[0].steps[0].numbers["nothing"] == 0.2


def test_other_tools_are_a_change_and_their_means_are_not_the_best(session, trainer):
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    trainer.train(trainer.sample("letters", [[1.0, 1.0]], tools=[tool]), step=1)
    trainer.train(trainer.sample("letters", HALF, step=1), step=2)
    (run,) = session.runs()
    assert run.best == "lab/practice@1"
    assert [(each.option, each.before) for each in run.changes] == [("tools", ["add"])]


def test_runs_of_other_rewards_are_not_joined_as_seeds(session, trainer):
    for seed in (0, 1):
        model = f"lab/practice.letters.seed{seed}"
        session.store.origins.set("embedded", model, Origin(sweep="letters", settings={}, seed=seed))
        for code, scale, step in (("v1", 1.0, 0), ("v2", 100.0, 1)):
            rewards = [[scale * reward for reward in group] for group in HALF]
            made = trainer.sample(f"letters.seed{seed}", rewards, step=step, model=model, code=code)
            trainer.train(made, step=step + 1, model=model)
    courses = session.runs("lab/practice.letters.*").state()["courses"]
    assert {course["name"]: course["numbers"]["reward"] for course in courses} == {
        "letters": [0.5], "letters · run 2": [50.0]
    }  # fmt: skip


def test_each_generation_costs_once(session, trainer):
    made = trainer.sample("letters", HALF)
    trainer.lab._database.execute(
        "INSERT INTO spending (at, service, model, purpose, collection_id, amount) VALUES (?, ?, ?, ?, ?, ?)",
        "2025", "embedded", "lab/practice", "sampling", made.id, 10**12,
    )  # fmt: skip
    trainer.train(made, step=1)
    trainer.train(made, step=2)
    assert session.runs()[0].cost == 1.0


def test_a_job_whose_stored_events_cannot_be_read_has_the_numbers_of_its_answers(session, trainer):
    job = trainer.train(trainer.sample("letters", HALF), step=1)
    trainer.lab._database.execute("UPDATE job_events SET events = '[{\"type\": 1}]' WHERE job_id = ?", job.id)
    (run,) = session.runs()
    assert run.steps[0].numbers["reward"] == 0.5
    assert "seconds" not in run.steps[0].numbers


def test_an_open_view_keeps_its_run_when_another_one_of_the_model_begins(session, trainer):
    two_steps(trainer)
    view = session.runs("lab/practice")
    trainer.train(trainer.sample("letters", [[100.0, 0.0]], step=2, code="v2"), step=3)
    (course,) = view.calls()["renewed"]([0, 0])["courses"]
    assert (course["name"], course["steps"]) == ("lab/practice:1", [0, 1])
