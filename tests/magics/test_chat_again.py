"""`%%chat NAME` with an empty cell: the prompts of a collection, sampled again with what is given changed."""

import pytest

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
