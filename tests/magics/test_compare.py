"""`%compare`: two checkpoints on the prompts and seeds of a collection."""

import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rolloutlab.api.inference import complete
from rolloutlab.errors import NotFoundError, RefusedError

CHAT = "%%chat capitals -n 2 --over countries --max-tokens 4 --seed 1\nuser: Capital of {{country}}?"
REWARD = "%%reward capitals\nreturn float(len(answer))"


@pytest.fixture
def service(service):
    """The module's, emptied after each test: these train."""
    yield service
    service.empty()


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
    again = session.collection("compare.capitals.lab.practice.step0").trajectories
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
    verdict, _, how = ALL.partition(" -> ")
    assert f"<b>{verdict.capitalize()}</b> → {how}" in result._repr_html_()


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


def test_a_checkpoint_beside_itself_has_no_verdict(trained):
    made = trained.run("%compare capitals --before 0 --after 0 --over countries -n 2")
    assert "no verdict, it is one checkpoint with the same seeds on both sides -> another checkpoint" in repr(made)


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


REFUSED = [
    ("%compare capitols", "NotFoundError: there is no collection 'capitols'\n  -> capitals"),
    ("%compare capitals --after 9", "NotFoundError: lab/practice has no checkpoint 9; there are 0, 1"),
    ("%compare capitals --before first", "InputError: 'first' is not a checkpoint\n  -> lab/practice@3"),
    ("%compare capitals --before lab/practice@x", "InputError: 'lab/practice@x' is not a checkpoint\n"),
    ("%compare capitals lab/sorter@0 1", "NotFoundError: there is no model 'lab/sorter'"),
    ("%compare capitals 1", "InputError: 1 is one checkpoint: a comparison needs two\n  -> %compare capitals 1 "),
    ("%compare capitals 0 1 lab/practice", "InputError: lab/practice@1 is given twice\n"),
    (
        "%compare capitals 0 1 --after 1",
        "InputError: checkpoints are given both by name and as --before or --after",
    ),
    ("%compare 0 lab/practice@1", "NotFoundError: there is no collection '0'\n"),
    ("%compare capitals -n 0", "InputError: n: 0 is below 1"),
]


def test_bad_input_stops_the_cell(trained):
    for cell, message in REFUSED:
        assert trained.error(cell).startswith(message), cell


def test_with_one_checkpoint_there_is_nothing_to_compare(notebook):
    notebook.run(CHAT)
    notebook.run(REWARD)
    assert notebook.error("%compare capitals") == (
        "InputError: lab/practice has no checkpoint after 0 yet\n  -> %%train capitals"
    )


@pytest.fixture
def second(trained):
    """A notebook with a second model, trained on other prompts."""
    trained.run("%model lab/second")
    trained.shell.user_ns["new"] = [CHAD]
    trained.run(CHAT.replace("countries", "new"))
    trained.run(REWARD)
    trained.run("%%train capitals\nlearning_rate: 0.01")
    return trained


def test_checkpoints_of_two_models_are_compared_apart_from_what_either_was_trained_on(second):
    second.shell.user_ns["many"] = [*second["countries"], CHAD, CHAD | {"country": "Mali"}]
    result = second.run("%compare capitals lab/practice@1 lab/second@1 --over many")
    assert (result.before, result.after) == ("lab/practice@1", "lab/second@1")
    assert result.to_frame()["trained"].sum() == result.trained == 3
    from_start = second.run("%compare capitals --before lab/practice@0 --after lab/second --over many")
    assert (from_start.before, from_start.after, from_start.trained) == ("lab/practice@0", "lab/second@1", 1)
    same = second.run("%compare capitals lab/practice@1 lab/practice@0 --over many")
    assert same.trained == 2


def test_several_checkpoints_are_compared_with_the_first(second):
    result = second.run("%compare capitals lab/practice@0 lab/practice@1 1 --over countries -o several")
    assert [(each.before, each.after) for each in result] == [
        ("lab/practice@0", "lab/practice@1"),
        ("lab/practice@0", "lab/second@1"),
    ]
    frame = result.to_frame()
    assert list(frame.columns) == ["prompt", "lab/practice@0", "lab/practice@1", "lab/second@1", "n"]
    one = result["lab/second@1"]
    assert one.mean_before == pytest.approx(frame["lab/practice@0"].mean())
    assert one.mean_after == pytest.approx(frame["lab/second@1"].mean())
    assert (result[0].trained, one.trained) == (2, 0)
    assert repr(one) in repr(result)
    assert re.search(
        r"lab/second@1 +\d\.\d+ +[+\N{MINUS SIGN}]?\d\.\d+  no verdict from fewer than 16 prompts", repr(result)
    )
    assert "lab/practice@0 → lab/second@1" in result._repr_html_()
    with pytest.raises(NotFoundError, match="'lab/other@1' was not compared"):
        result["lab/other@1"]


def test_without_a_name_rows_are_for_the_prompt_of_the_collection_that_was_trained_on(trained):
    trained.run("%model lab/second")
    result = trained.run("%compare lab/practice@0 lab/practice@1 --over countries[:1]")
    assert [pair.prompt for pair in result.pairs] == ["Capital of France?"]
    assert (result.name, result.trained) == ("capitals", 1)
    assert trained.error("%compare lab/practice@0 lab/practice@1") == (
        "InputError: the collection is missing whose prompts they are to answer\n"
        "  -> %compare capitals lab/practice@0 lab/practice@1 --over ROWS"
    )
    assert trained.error("%compare lab/second@0 lab/second@0 --over countries") == (
        "InputError: no collection is known that lab/second@0 lab/second@0 were trained on\n"
        "  -> %compare NAME lab/second@0 lab/second@0 --over ROWS"
    )


def test_without_a_name_two_collections_are_one_too_many(trained):
    trained.run(CHAT.replace("capitals", "towns"))
    trained.run(REWARD.replace("capitals", "towns"))
    trained.run("%model lab/second")
    trained.run("%%train towns\nlearning_rate: 0.01")
    assert trained.error("%compare lab/practice@1 lab/second@1 --over countries") == (
        "InputError: lab/practice@1 lab/second@1 were trained on capitals, towns: say of which one the prompt is\n"
        "  -> %compare capitals lab/practice@1 lab/second@1 --over ROWS"
    )


def test_a_checkpoint_that_no_job_of_the_lab_made_is_noted(trained, session):
    with closing(sqlite3.connect(session.settings.database)) as database, database:
        database.execute("DELETE FROM jobs")
    lines = trained.run("%compare capitals").words()
    assert (
        "no job of this lab made 1 checkpoint of lab/practice in between: what it trained on there is not known"
        in lines
    )


@pytest.fixture
def sent(monkeypatch):
    """The prompt and the model of each request for completions, and what fails each that it fits."""
    requests, failing = [], set()

    async def send(http, address, request, tries):
        prompt = request.messages[-1].content
        if prompt in failing:
            raise RefusedError("not today", status=400)
        if prompt.startswith("Capital of"):  # not what is sent to learn what a service refuses
            requests.append((prompt.removeprefix("Capital of ").rstrip("?"), request.model))
        return await complete(http, address, request, tries)

    monkeypatch.setattr("rolloutlab.sampling.sending.complete", send)
    return SimpleNamespace(requests=requests, failing=failing)


def test_what_was_sampled_for_a_comparison_is_not_sampled_again(trained, sent):
    first = trained.run("%compare capitals 0 1 --over countries")
    assert len(sent.requests) == 4
    sent.requests.clear()
    again = trained.run("%compare capitals 0 1 --over countries")
    assert (sent.requests, again.pairs) == ([], first.pairs)
    assert "8 completions, 8 of them reused" in again.words()
    assert not any("reused" in line for line in first.words())
    trained.run("%model lab/second")
    trained.run("%model lab/practice")
    assert "8 completions, 4 of them reused" in trained.run("%compare capitals 0 lab/second --over countries").words()
    assert sent.requests == [("France", "lab/second@0"), ("Peru", "lab/second@0")]


def test_of_more_rows_only_those_are_sampled_that_are_new(trained, sent):
    trained.run("%compare capitals --over countries")
    trained.shell.user_ns["more"] = [*trained["countries"], CHAD]
    sent.requests.clear()
    grown = trained.run("%compare capitals --over more")
    assert sent.requests == [("Chad", "lab/practice@0"), ("Chad", "lab/practice@1")]
    assert "12 completions, 8 of them reused" in grown.words()
    trained.run("%collections --delete compare.capitals.lab.practice.step0")
    trained.run("%collections --delete compare.capitals.lab.practice.step1")
    assert trained.run("%compare capitals --over more").pairs == grown.pairs


@pytest.mark.parametrize("changed", ["-n 3", "--over countries[::-1]"])
def test_with_other_seeds_or_settings_nothing_is_reused(trained, sent, changed):
    trained.run("%compare capitals --over countries")
    sent.requests.clear()
    assert "reused" not in repr(trained.run(f"%compare capitals {changed}"))
    assert len(sent.requests) == 4


def test_a_comparison_that_was_broken_off_goes_on(trained, sent):
    sent.failing.add("Capital of Peru?")
    assert "--resume" in trained.error("%compare capitals --over countries")
    sent.failing.clear()
    whole = trained.run("%compare capitals --over countries")
    assert sent.requests == [
        ("France", "lab/practice@0"),
        ("Peru", "lab/practice@0"),
        ("France", "lab/practice@1"),
        ("Peru", "lab/practice@1"),
    ]
    assert "8 completions, 2 of them reused" in whole.words()


def test_the_samples_have_the_rewards_of_the_function_that_is_given(trained, sent, capsys):
    trained.run("%compare capitals --over countries")
    sent.requests.clear()
    scored = trained.run("%%compare capitals --over countries\nreturn 0.25")
    assert (scored.mean_before, scored.mean_after, sent.requests) == (0.25, 0.25, [])


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
