"""Models are made by being selected, and by nothing else."""

import pytest

from rolloutlab.api import health
from rolloutlab.errors import InputError, NotFoundError, NotOfferedError, RefusedError


def test_a_model_that_is_only_named_is_not_made(session):
    session.model("lab/other")
    with pytest.raises(NotFoundError, match="there is no model 'lab/othr'") as unknown:
        session._models.find("lab/othr")
    assert unknown.value.hint == "lab/other"
    with pytest.raises(InputError, match="is not a model name"):
        session._models.find("other")
    assert "lab/othr" not in session.models.list().index


def test_the_selected_model_and_those_that_are_there_are_found(session):
    assert session._models.find("lab/practice").steps == (0,)
    session.model("lab/other")
    assert session._models.find("lab/practice").name == "lab/practice"


@pytest.fixture
def of_its_own(service):
    """The module's service, emptied after each test: these train."""
    yield service
    service.empty()


ROWS = [{"country": "France"}, {"country": "Peru"}]


def by_place(trajectory):
    return int(trajectory.name[-1]) / 2


def train(session, name="capitals", **settings):
    session.chat(name, "Capital of {{country}}?", over=ROWS, n=2, max_tokens=4, seed=1, **settings)
    session.reward(name, by_place, say=lambda _: None)
    return session.train(name, {"learning_rate": 0.01}, say=lambda _: None)


@pytest.fixture
def practised(of_its_own, session):
    """A session whose model lab/practice has the checkpoints 0, 1 and 2."""
    train(session)
    train(session)
    return session


def steps_of(job):
    return [event.data for event in job.events() if event.type == "gradient_step"]


@pytest.mark.parametrize(
    ("start", "source"),
    [
        ("lab/practice@2", "lab/practice@2"),
        ("lab/practice", "lab/practice@2"),
        ("lab/practice@latest", "lab/practice@2"),
        ("practice@latest", "lab/practice@2"),
        ("practice@1", "lab/practice@1"),
        ("latest", "lab/practice@2"),
        ("1", "lab/practice@1"),
        (0, "lab/practice@0"),
    ],
)
def test_a_model_is_made_from_a_checkpoint_however_that_is_written(practised, start, source):
    made = practised.model("lab/second", start=start)
    step = source[-1]
    assert repr(made) == f"model lab/second from {source} on tiny: checkpoint {step}"
    assert made.steps == (int(step),)
    assert practised.models.selected == "lab/second"
    assert practised.models.list()["made_from"].dropna().to_dict() == {"lab/second": source}
    assert source in practised.models.list()._repr_html_()


def test_a_model_is_made_from_a_checkpoint_that_is_named_by_the_id_of_its_model(practised):
    model_id = practised.model().id
    assert repr(practised.model("lab/second", start=f"{model_id}@1")).startswith("model lab/second from lab/practice@1")


def test_its_first_job_begins_at_the_policy_that_was_sampled_and_makes_the_next_step(practised):
    practised.model("lab/second", start=2)
    first, *_ = steps_of(train(practised, "towns"))
    assert first["kl"] == pytest.approx(0, abs=1e-6)
    assert first["ratio_max"] == pytest.approx(1, abs=1e-3)
    assert first["kl_base"] > 1e-6
    assert practised.model().steps == (2, 3)
    assert {t.step for t in practised.collection("towns").trajectories} == {2}
    again = practised.model("lab/second", start="lab/practice@2")
    assert repr(again).splitlines() == [
        "model lab/second from lab/practice@2 on tiny: 2 checkpoints, newest 3",
        "lab/second was made from lab/practice@2 before, and goes on from its checkpoint 3",
    ]


def test_a_loop_goes_on_from_it(practised):
    practised.model("lab/second", start="lab/practice@1")
    given = {"over": ROWS, "n": 2, "jobs": 2, "max_tokens": 4, "held_out": ROWS, "say": lambda _: None}
    loop = practised.loop("towns", "Capital of {{country}}?", by_place, **given)
    assert loop.history["step"].tolist() == [1, 2, 3]
    assert practised.model().steps == (1, 2, 3)


def test_what_its_source_has_sampled_is_not_of_another_policy_until_it_has_trained(practised):
    practised.chat("new", "Capital of {{country}}?", over=ROWS, n=2, max_tokens=4, seed=2)
    practised.reward("new", by_place, say=lambda _: None)
    practised.model("lab/second", start=1)
    assert "sampled from lab/practice, not lab/second" in repr(practised.check("new"))
    practised.model("lab/third", start="lab/practice@2")
    assert "sampled from" not in repr(practised.check("new"))
    practised.train("new", {"learning_rate": 0.01}, say=lambda _: None)
    assert "sampled from lab/practice, not lab/third" in repr(practised.check("new"))


def test_it_is_compared_with_its_oldest_checkpoint_which_is_named(practised):
    practised.model("lab/second", start=2)
    with pytest.raises(InputError, match="lab/second has no checkpoint after 2 yet"):
        practised.compare("capitals")
    train(practised, "towns")
    result = practised.compare("towns", by_place)
    assert (result.before, result.after) == ("lab/second@2", "lab/second@3")
    named = "compared with lab/second@2, the oldest checkpoint of lab/second, which was made from lab/practice@2"
    assert named in result.words()
    with pytest.raises(NotFoundError, match="lab/second has no checkpoint 0; there are 2, 3"):
        practised.compare("towns", by_place, before=0)
    assert "compared with" not in repr(practised.compare("towns", by_place, before=2))


def test_a_model_whose_first_checkpoint_is_deleted_is_compared_with_its_oldest(practised):
    practised.models.delete("lab/practice@0")
    result = practised.compare("capitals", by_place)
    assert (result.before, result.after) == ("lab/practice@1", "lab/practice@2")
    assert "compared with lab/practice@1, the oldest checkpoint of lab/practice" in result.words()


def test_only_what_it_and_its_source_were_trained_on_apart_counts_in_a_comparison(practised):
    other = [{"country": "Chad"}, {"country": "Mali"}]
    practised.model("lab/second", start="lab/practice@1")
    practised.chat("towns", "Capital of {{country}}?", over=other[:1], n=2, max_tokens=4, seed=1)
    practised.reward("towns", by_place, say=lambda _: None)
    practised.train("towns", {"learning_rate": 0.01}, say=lambda _: None)
    practised.model("lab/third", start="latest")
    over = [*ROWS, *other]
    for checkpoints, trained in {
        ("lab/practice@1", "lab/second@1"): 0,
        ("lab/practice@1", "lab/second@2"): 1,
        ("lab/second@1", "lab/practice@2"): 2,
        ("lab/practice@0", "lab/second@2"): 3,
        ("lab/second@2", "lab/third@2"): 0,
        ("lab/practice@1", "lab/third@2"): 1,
    }.items():
        result = practised.compare("capitals", by_place, checkpoints=checkpoints, over=over)
        assert result.trained == trained, checkpoints
        assert not [line for line in result.words() if "not known" in line], checkpoints


def test_a_name_that_is_wrong_or_missing_makes_no_model(practised):
    for given, error, why in [
        ({"name": None, "start": 2}, InputError, "needs a name"),
        ({"name": "second", "start": 2}, InputError, "'second' is not a model name"),
        ({"name": practised.model().id, "start": 2}, InputError, "is the id of a model that exists"),
        ({"name": "lab/second", "start": "some text"}, InputError, "'some text' is not a checkpoint"),
        ({"name": "lab/second", "start": 7}, NotFoundError, "lab/practice has no checkpoint 7; it has 0 to 2"),
        ({"name": "lab/second", "start": 2, "base": "other"}, RefusedError, "'other' is not served here"),
        ({"name": "lab/practice", "start": 2}, RefusedError, "lab/practice exists and began at the base policy"),
    ]:
        with pytest.raises(error, match=why):
            practised.model(**given)
    assert practised.models.selected == "lab/practice"
    assert list(practised.models.list().index) == ["tiny", "lab/practice"]


@pytest.mark.parametrize(
    ("start", "hint"),
    [
        ("lab/practice@77", "%model lab/second --from lab/practice"),
        ("lab/practise@1", "%model lab/second --from lab/practice"),
        ("other/zzz", "%models"),
    ],
)
def test_a_checkpoint_that_does_not_exist_says_from_which_a_model_can_be_made(practised, start, hint):
    with pytest.raises(NotFoundError) as error:
        practised.model("lab/second", start=start)
    assert error.value.hint == hint
    if source := hint.partition(" --from ")[2]:
        assert practised.model("lab/second", start=source).made_from[0].step == 2


def test_an_earlier_service_that_would_ignore_the_source_is_not_asked_to_make_it(practised, monkeypatch):
    asked = health._once

    async def answer(http, address, method, url, *body):
        response = await asked(http, address, method, url, *body)
        if url.endswith("/engine"):
            del response["forks"]
        return response

    monkeypatch.setattr(health, "_once", answer)
    with pytest.raises(NotOfferedError, match="makes no models from checkpoints") as refused:
        practised.model("lab/second", start=2)
    assert refused.value.hint == "%connect embedded"
    assert list(practised.models.list().index) == ["tiny", "lab/practice"]
