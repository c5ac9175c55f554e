"""`%compare`: two checkpoints on the prompts and seeds of a collection."""

from dataclasses import replace

import pytest

CHAT = "%%chat capitals -n 2 --over countries --max-tokens 4 --seed 1\nuser: Capital of {{country}}?"
REWARD = "%%reward capitals\nreturn float(len(answer))"


@pytest.fixture
def service(start):
    """One for each test: these train, stop or break it."""
    return start()


@pytest.fixture
def trained(notebook):
    """A notebook in which one job was trained."""
    notebook.run(CHAT)
    notebook.run(REWARD)
    notebook.run("%%train capitals\nlearning_rate: 0.01")
    return notebook


def test_the_newest_checkpoint_is_compared_with_the_first_by_the_function_that_scored_last(trained, session):
    result = trained.run("%compare capitals -o found")
    assert (result.before, result.after) == ("lab/practice@0", "lab/practice@1")
    assert [pair.prompt for pair in result.pairs] == ["Capital of France?", "Capital of Peru?"]
    assert trained["found"] is result
    original = session.collection("capitals").trajectories
    again = session.collection("compare.capitals.step0").trajectories
    assert [t.answer for t in again] == [t.answer for t in original]
    assert [t.reward for t in again] == [t.reward for t in original]


def test_other_rows_and_another_function_may_be_compared(trained):
    result = trained.run("%%compare capitals --over countries[:1] -n 3 --before 1 --after 0\nreturn 1.0")
    assert (result.before, result.after, len(result.pairs), result.pairs[0].after) == (
        "lab/practice@1",
        "lab/practice@0",
        1,
        (1.0, 1.0, 1.0),
    )


ALL = "no verdict, all of these prompts were trained on in between -> --over ROWS that were not"
CHAD = {"country": "Chad", "capital": "N'Djamena"}


def test_on_the_prompts_that_were_trained_on_there_is_no_verdict(trained):
    result = trained.run("%compare capitals")
    assert result.trained == 2
    assert f": {ALL}" in repr(result)
    assert f": {ALL.replace('>', '&gt;')}" in result._repr_html_()


def test_rows_that_were_not_trained_on_are_told_from_those_that_were(trained):
    trained.shell.user_ns["new"] = [CHAD | {"country": f"Country {i}"} for i in range(16)]
    fresh = trained.run("%compare capitals --over new --bounds 0 100")
    assert fresh.trained == 0
    assert "no verdict" not in repr(fresh)
    mixed = trained.run("%compare capitals --over new[:3]+countries")
    assert mixed.to_frame()["trained"].sum() == mixed.trained == 2
    assert "no verdict, 2 of these prompts were trained on in between" in repr(mixed)


def test_only_jobs_between_the_two_checkpoints_count(trained, session):
    trained.shell.user_ns["new"] = [CHAD]
    trained.run(CHAT.replace("countries", "new"))
    trained.run("%%reward capitals\nreturn float(trajectory.name[-1])")
    trained.run("%%train capitals\nlearning_rate: 0.01")
    spans = {(0, 1): 2, (1, 2): 0, (2, 0): 2}
    for (before, after), count in spans.items():
        assert trained.run(f"%compare capitals:1 --before {before} --after {after}").trained == count


def test_what_was_trained_on_counts_also_once_its_collection_is_renamed_and_deleted(trained):
    trained.run(CHAT.replace("capitals", "again"))
    trained.run("%%reward again\nreturn 1.0")
    trained.run("%collections --rename capitals towns")
    trained.run("%collections --delete towns")
    assert trained.run("%compare again").trained == 2


def test_a_model_called_by_its_id_was_trained_on_the_same_prompts(trained, session):
    model_id = session.model().id
    result = trained.run(f"%compare capitals -m {model_id}")
    assert result.trained == 2
    assert ALL in repr(result)


def test_a_job_that_was_submitted_under_the_id_counts_for_the_name(notebook, session):
    notebook.run(f"%model {session.model().id}")
    notebook.run(CHAT)
    notebook.run(REWARD)
    notebook.run("%%train capitals\nlearning_rate: 0.01")
    assert notebook.run("%compare capitals -m lab/practice").trained == 2


def test_the_same_service_at_another_address_trained_on_the_same_prompts(trained, session):
    address = session.settings.service
    other = replace(address, base_url="http://localhost", inference_base_url="http://localhost/v1")
    assert other.base_url != address.base_url
    session.settings = replace(session.settings, service=other)
    assert trained.run("%compare capitals").trained == 2


def test_equal_prompts_count_once(trained):
    trained.shell.user_ns["new"] = [{"country": f"Country {i % 8}", "capital": "x"} for i in range(16)]
    result = trained.run("%compare capitals --over new")
    assert (len(result.pairs), result.to_frame()["n"].to_list()) == (8, [4] * 8)
    assert "on 8 prompts (16 rows; equal prompts count once)" in repr(result)
    assert "no verdict from fewer than 16 prompts" in repr(result)


def test_bounds_of_the_rewards_can_be_given(trained):
    trained.shell.user_ns["new"] = [{"country": f"Country {i}", "capital": "x"} for i in range(16)]
    cell = "return float(len(answer) > 0) * 5.0"
    unbounded = trained.run(f"%%compare capitals --over new\n{cell}")
    assert "no verdict, rewards have no known bounds -> --bounds LEAST LARGEST" in repr(unbounded)
    bounded = trained.run(f"%%compare capitals --over new --bounds -5 5\n{cell}")
    assert "all differences equal, for rewards within -5 and 5): no clear difference" in repr(bounded)
    assert trained.error(f"%%compare capitals --over new --bounds 0 1\n{cell}") == (
        "InputError: the reward 5 is outside the bounds 0 and 1\n  -> --bounds 0 5, if no reward can be beyond"
    )


def test_rewards_of_components_need_no_bounds(trained, session):
    trained.shell.user_ns["new"] = [{"country": f"Country {i}", "capital": "x"} for i in range(16)]
    trained.shell.user_ns["parts"] = {"some": lambda answer: float(len(answer) > 0), "any": lambda answer: 1.0}
    weighted = session.compare(
        "capitals", trained.shell.user_ns["parts"], over=trained.shell.user_ns["new"], variables=trained.shell.user_ns
    )
    assert weighted.bounds == (0.0, 2.0)
    assert "within 0 and 2, as their components allow): no clear difference" in repr(weighted)


def test_a_verdict_needs_sixteen_prompts(trained):
    trained.shell.user_ns["new"] = [{"country": f"Country {i}", "capital": "x"} for i in range(15)]
    assert "no verdict from fewer than 16 prompts -> --over more rows" in repr(
        trained.run("%compare capitals --over new")
    )


def test_an_interval_for_many_looks_can_be_asked_for(trained):
    trained.shell.user_ns["new"] = [{"country": f"Country {i}", "capital": "x"} for i in range(16)]
    once, always = (trained.run(f"%compare capitals --over new --bounds 0 20 {how}") for how in ("", "--anytime"))
    assert "valid at every look" in repr(always)
    assert "valid at every look" not in repr(once)
    assert always.interval() != once.interval()


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("%compare capitols", "NotFoundError: there is no collection 'capitols'\n  -> capitals"),
        ("%compare capitals --after 9", "NotFoundError: lab/practice has no checkpoint 9; there are 0, 1"),
        ("%compare capitals --before first", "InputError: 'first' is not a checkpoint step"),
        ("%compare capitals -n 0", "InputError: n: 0 is below 1"),
    ],
)
def test_bad_input_stops_the_cell(trained, cell, message):
    assert trained.error(cell).startswith(message)


def test_with_one_checkpoint_there_is_nothing_to_compare(notebook):
    notebook.run(CHAT)
    notebook.run(REWARD)
    assert notebook.error("%compare capitals") == (
        "InputError: lab/practice has no checkpoint after 0 yet\n  -> %%train capitals"
    )


def test_a_pattern_does_not_train_on_what_was_only_compared(trained):
    trained.run("%compare capitals")
    assert "dry run of capitals for" in repr(trained.run("%%train 'cap*' --dry-run"))


def test_without_a_reward_function_it_says_what_to_type(notebook):
    notebook.run(CHAT)
    assert notebook.error("%compare capitals") == (
        "InputError: nothing scored capitals in this notebook yet\n"
        "  -> %%compare capitals, with the reward function as its body"
    )


def test_a_conversation_that_went_on_is_compared_from_its_beginning(trained):
    trained.run("%%chat capitals --continue --max-tokens 4\nuser: why?")
    assert trained.error("%compare capitals").endswith("-> %compare capitals:1")
