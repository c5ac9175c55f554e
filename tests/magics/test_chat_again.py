"""`%%chat NAME` with an empty cell: the prompts of a collection, sampled again with what is given changed."""

import pytest

from rolloutlab.sampling.rollout import new_rollouts

CHAT = "%%chat capitals -n 3 --over countries --max-tokens 4 --temperature 0.7 --seed 1\nuser: Capital of {{country}}?"


@pytest.fixture
def begun(notebook):
    notebook.run(CHAT)
    return notebook


def prompts(collection):
    return [group.prompt[-1].content for group in collection.groups]


def test_an_empty_cell_samples_the_same_prompts_into_the_next_generation(begun):
    before, after = begun.lab.collection("capitals"), begun.run("%%chat capitals\n")
    assert after.label == "capitals:2"
    assert prompts(after) == prompts(before) == ["Capital of France?", "Capital of Peru?"]
    settings = ("n", "max_tokens", "temperature", "template")
    assert [after.stored.plan[name] for name in settings] == [before.stored.plan[name] for name in settings]
    assert after.stored.plan["seed"] != 1, "the same completions would come again"


def test_what_is_given_is_changed_and_stays_so_the_next_time(begun):
    begun.run("%%chat capitals --max-tokens 8 -n 2\n")
    plan = begun.run("%%chat capitals --temperature 1 --seed 7\n").stored.plan
    assert (plan["max_tokens"], plan["n"], plan["seed"]) == (8, 2, 7)
    assert plan.get("temperature", 1) == 1
    assert {len(group.trajectories) for group in begun.lab.collection("capitals").groups} == {2}


def test_other_rows_take_the_prompt(begun):
    begun.shell.user_ns["others"] = [{"country": "Chad"}, {"country": "Mali"}, {"country": "Oman"}]
    assert prompts(begun.run("%%chat capitals --over others --limit 2\n")) == ["Capital of Chad?", "Capital of Mali?"]


def test_a_limit_without_rows_takes_the_first_prompts(begun):
    assert prompts(begun.run("%%chat capitals --limit 1\n")) == ["Capital of France?"]
    assert "limit must be an integer" in begun.error("%%chat capitals --limit 0\n")


def test_a_limit_without_rows_keeps_which_part_of_a_split_the_first_prompts_are_of(begun):
    parts = begun.lab.split([{"country": letter} for letter in "abcdefgh"], 0.5)
    begun.shell.user_ns["rows"] = parts.train + parts.held_out
    begun.run("%%chat letters --over rows --max-tokens 4\nuser: {{country}}?")
    assert len(begun.lab.collection("letters").part("train")) > 1
    assert begun.run("%%chat letters --limit 1\n").part("train") == {0}


def test_a_dry_run_sends_nothing(begun):
    shown = repr(begun.run("%%chat capitals --max-tokens 9 --dry-run\n"))
    assert '"max_tokens": 9' in shown or '"max_completion_tokens": 9' in shown
    assert "6 trajectories" in shown
    assert begun.lab.collection("capitals").stored.generation == 1


def test_an_empty_cell_without_a_collection_is_an_error(notebook):
    assert "the cell is empty" in notebook.error("%%chat capitals\n")


def test_what_an_environment_played_names_it(notebook):
    notebook.run("def guess(row):\n    answer = yield 'A number?'\n    yield 'Right.', 1.0, True")
    notebook.run("%%chat guesses -n 2 --env guess --max-tokens 4\n")
    assert "--env guess" in notebook.error("%%chat guesses --max-tokens 8\n")
    assert notebook.run("%%chat guesses -n 2 --env guess --max-tokens 4\n").label == "guesses:2"


def test_a_collection_that_goes_on_cannot_begin_again(begun):
    begun.run("%%chat capitals --continue --max-tokens 4\nuser: Sure?")
    assert "not sampled from prompts that could be sampled again" in begun.error("%%chat capitals\n")


def test_what_a_continuation_lacks_from_its_beginning_is_asked_of_what_it_continues(begun, monkeypatch):
    session = begun.lab
    with monkeypatch.context() as patched:
        patched.setattr("rolloutlab.sampling.plan.new_rollouts", lambda i, *rest: new_rollouts(i, *rest) if i else [])
        session.chat("capitals", "user: Capital of {{country}}?", over=begun["countries"], n=3, max_tokens=4)
    going_on = begun.run("%%chat capitals --continue --max-tokens 4\nuser: Sure?")
    asked = "%%chat capitals:2 --resume, then --continue"
    assert f"3 of 6 answers are missing. -> {asked}" in repr(going_on)
    assert begun.error("%%chat capitals --resume") == (
        f"InputError: 3 answers missing in capitals had no conversation to go on with: capitals:2 lacked it\n"
        f"  -> {asked}"
    )
    assert begun.run("%%chat capitals:2 --resume").missing == 0
    assert begun.run("%%chat capitals:2 --continue --max-tokens 4\nuser: Sure?").missing == 0


def test_the_cell_of_a_branch_whose_text_has_braces_can_be_typed(notebook):
    notebook.shell.user_ns |= {"lab": notebook.lab, "rows": [{"x": "{{x}} and {{y}}"}]}
    notebook.run("%%chat braces --over rows --max-tokens 4\nuser: {{x}}")
    notebook.run(notebook.lab.branch("braces/0/0").cell("again"))
    assert prompts(notebook.lab.collection("again")) == ["{{x}} and {{y}}"]


def test_the_hint_for_a_generation_of_an_unknown_name_can_be_typed(notebook):
    shown = notebook.error("%%chat nope:1 --resume")
    assert shown == "NotFoundError: there is no collection 'nope:1'\n  -> %%chat nope"
    notebook.run(f"{shown.split('-> ')[1]} --max-tokens 2\nuser: hi")
    assert notebook.lab.collection("nope:1").missing == 0
