"""What `%%chat` asks of a service, and how its answers reach the lab as they arrive."""

import asyncio
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rolloutlab.errors import InputError, ServiceError
from rolloutlab.sampling import CONCURRENT, Arrivals, Prompt, make_prompt, rows_of, sample_all
from rolloutlab.store.lab import Lab
from rolloutlab.wire.chat import ChatCompletion

MESSAGES = [{"role": "user", "content": "Capital of {{country}}?"}]
SETTINGS = {"model": "lab/practice", "n": 2, "temperature": 0.7, "top_p": 0.9, "seed": 3}


def prompt(country: str = "France", **settings: Any) -> Prompt:
    return make_prompt(MESSAGES, {"country": country}, {}, SETTINGS | settings)


def completion(*answers: str, step: int | None = None) -> ChatCompletion:
    version = {} if step is None else {"policy_version": step}
    choices = [
        {"index": i, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}, **version}
        for i, answer in enumerate(answers or ("Paris",))
    ]
    return ChatCompletion(id="c", object="chat.completion", created=0, model="lab/practice", choices=choices)


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path / "lab.db")
    yield lab
    lab.close()


def test_without_rows_there_is_one_empty_row():
    assert rows_of(None) == [{}]


def test_a_frame_gives_one_row_per_row():
    frame = pd.DataFrame({"country": ["France", "Peru"], "n": [1, 2]}, index=[7, 7])
    assert rows_of(frame) == [{"country": "France", "n": 1}, {"country": "Peru", "n": 2}]


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_mappings_gives_their_columns_and_any_other_value_is_the_item(kind):
    assert rows_of(kind([{"country": "France"}, "Peru", 3])) == [{"country": "France"}, {"item": "Peru"}, {"item": 3}]


def test_the_names_of_columns_are_texts():
    assert rows_of(pd.DataFrame([[1, 2]])) == [{"0": 1, "1": 2}]


@pytest.mark.parametrize(("scalar", "plain"), [(np.int64(2), 2), (np.float32(1.5), 1.5), (np.bool_(True), True)])
@pytest.mark.parametrize("over", [lambda x: [{"item": x}], lambda x: [x], lambda x: pd.DataFrame({"item": [x]})])
def test_scalars_of_numpy_become_pythons(over, scalar, plain):
    (row,) = rows_of(over(scalar))
    assert row == {"item": plain}
    assert type(row["item"]) is type(plain)


@pytest.mark.parametrize("missing", [float("nan"), np.float64("nan"), None])
def test_what_is_missing_is_none(missing):
    (row,) = rows_of([{"country": "France", "population": missing}])
    assert row == {"country": "France", "population": None}


@pytest.mark.parametrize("dtype", ["float", "Int64", "string", "datetime64[ns]"])
def test_what_a_frame_calls_missing_is_none_for_every_type_of_column(dtype):
    (row,) = rows_of(pd.DataFrame({"x": pd.Series([None], dtype=dtype)}))
    assert row == {"x": None}


@pytest.mark.parametrize(
    "over", ["countries", {"country": "France"}, 3, np.array([1, 2]), pd.Series(["France"]), (c for c in "ab")]
)
def test_rows_of_another_kind_are_refused(over):
    with pytest.raises(InputError, match=f"cannot sample over a {type(over).__name__}"):
        rows_of(over)


@pytest.mark.parametrize("over", [[], (), pd.DataFrame({"country": []})])
def test_no_rows_are_refused(over):
    with pytest.raises(InputError, match="no rows"):
        rows_of(over)


def test_a_request_carries_the_filled_messages_the_settings_and_asks_for_logprobs():
    made = make_prompt(MESSAGES, {"country": "France"}, {}, {**SETTINGS, "max_tokens": None})
    assert made.row == {"country": "France"}
    assert made.request.to_wire() == {
        "messages": [{"role": "user", "content": "Capital of France?"}],
        "logprobs": True,
        **SETTINGS,
    }


@pytest.mark.parametrize(("name", "bad"), [("n", 0), ("temperature", -1), ("top_p", 0.0), ("max_tokens", 0)])
def test_a_setting_out_of_range_is_refused_with_its_name_and_value(name, bad):
    with pytest.raises(InputError, match=rf"^{name}: .*not {bad}"):
        prompt(**{name: bad})


def test_every_answer_arrives_with_its_place():
    prompts = [prompt(country) for country in ("France", "Peru", "Chad")]
    arrived: dict[int, str] = {}

    async def complete(request):
        return completion(request.messages[0].content)

    asyncio.run(
        sample_all(prompts, complete, lambda place, got: arrived.update({place: got.choices[0].message.content}))
    )
    assert arrived == {0: "Capital of France?", 1: "Capital of Peru?", 2: "Capital of Chad?"}


def test_when_one_request_fails_what_had_arrived_stays_and_the_rest_is_cancelled():
    prompts = [prompt(country) for country in ("France", "Peru", "Chad")]
    arrived: list[int] = []
    cancelled: list[str] = []

    async def whole():
        first = asyncio.Event()

        async def complete(request):
            country = request.messages[0].content
            if "France" in country:
                return completion()
            if "Peru" in country:
                await first.wait()
                raise ServiceError("no more")
            try:
                await asyncio.wait_for(asyncio.Event().wait(), 10)
            except asyncio.CancelledError:
                cancelled.append(country)
                raise

        def arrive(place, _):
            arrived.append(place)
            first.set()

        await sample_all(prompts, complete, arrive)

    with pytest.raises(ServiceError, match="no more"):
        asyncio.run(whole())
    assert arrived == [0]
    assert cancelled == ["Capital of Chad?"]


def test_an_error_in_storing_is_raised_too():
    async def complete(request):
        return completion()

    def full(place, _):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        asyncio.run(sample_all([prompt()], complete, full))


def test_requests_are_under_way_some_at_a_time():
    under_way = most = 0

    async def complete(request):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return completion()

    asyncio.run(sample_all([prompt()] * (CONCURRENT + 9), complete, lambda *_: None))
    assert most == CONCURRENT


def test_nothing_is_created_before_the_first_arrival(lab):
    arrivals = Arrivals(lab, "capitals", [prompt(), prompt("Peru")])
    assert (lab.collections(), arrivals.done, arrivals.label) == ([], 0, "capitals")


def test_the_first_arrival_creates_all_groups_and_fills_its_own(lab):
    arrivals = Arrivals(lab, "capitals", [prompt("France"), prompt("Peru")])
    arrivals.take(1, completion("Lima", "Cusco", step=4))
    first, second = lab.groups(lab.collection("capitals"))
    assert [group.row for group in (first, second)] == [{"country": "France"}, {"country": "Peru"}]
    assert first.prompt[0].content == "Capital of France?"
    assert first.trajectories == ()
    assert [(t.name, t.answer) for t in second.trajectories] == [("capitals/1/0", "Lima"), ("capitals/1/1", "Cusco")]
    assert arrivals.done == 2


def test_later_arrivals_go_to_the_same_generation_even_when_a_newer_one_was_opened(lab):
    ours, theirs = Arrivals(lab, "capitals", [prompt()]), Arrivals(lab, "capitals", [prompt()])
    ours.take(0, completion("a"))
    theirs.take(0, completion("b"))
    ours.take(0, completion("c"))
    answers = {
        label: [t.answer for g in lab.groups(lab.collection(label)) for t in g.trajectories]
        for label in (ours.label, theirs.label)
    }
    assert answers == {"capitals:1": ["a", "c"], "capitals:2": ["b"]}


def test_how_a_completion_was_sampled_is_kept_with_it(lab):
    Arrivals(lab, "capitals", [prompt()]).take(0, completion("Paris", step=4))
    (group,) = lab.groups(lab.collection("capitals"))
    (kept,) = group.trajectories
    assert (kept.model, kept.step) == ("lab/practice", 4)
    assert kept.sampling == {"temperature": 0.7, "top_p": 0.9, "seed": 3}


def test_a_checkpoint_that_the_service_does_not_tell_is_unknown(lab):
    Arrivals(lab, "capitals", [prompt()]).take(0, completion("Paris"))
    (group,) = lab.groups(lab.collection("capitals"))
    assert group.trajectories[0].step is None


def test_the_row_is_kept_as_it_was_given(lab):
    rows = rows_of(pd.DataFrame({"country": ["France"], "n": [np.int64(1)], "when": [pd.Timestamp("2026-01-31")]}))
    Arrivals(lab, "capitals", [make_prompt(MESSAGES, rows[0], {}, SETTINGS)]).take(0, completion())
    (group,) = lab.groups(lab.collection("capitals"))
    assert group.row == json.loads(json.dumps(rows[0], default=str))
    assert (group.row["country"], group.row["n"]) == ("France", 1)


def test_a_bad_name_is_refused_before_anything_is_asked_for(lab):
    with pytest.raises(InputError, match="'a/b'"):
        Arrivals(lab, "a/b", [prompt()])
