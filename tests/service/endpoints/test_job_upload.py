"""A job's body in a file, read a trajectory at a time: accepted, refused and read as the whole at once would be."""

import json

import pydantic
import pytest
from pydantic_core import from_json

from rolloutlab.api.wire.errors import locate
from rolloutlab.api.wire.training import CreateTrainingJob
from rolloutlab.service.endpoints import job_upload, json_stream
from rolloutlab.service.endpoints.body import InvalidBodyError

ID = "00000000-0000-4000-8000-000000000000"
TEXTS = ["", '"', "\\", "}]", '[{"', '\\"}', "NaN", "ü😀\u2028", "\x00\x1f", "a" * 300]
GROUP, TRAJECTORY = ["trajectory_groups", 0], ["trajectory_groups", 0, "trajectories", 0]


@pytest.fixture(params=[1, 2, 7, 1 << 18])
def piece(request, monkeypatch):
    """How much is read at once."""
    monkeypatch.setattr(json_stream, "_CHUNK", request.param)


@pytest.fixture
def file(tmp_path):
    """Writes a body to a file."""

    def write(text):
        path = tmp_path / "job.json"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def plain(trajectory):
    return {"messages_and_choices": [{"role": "user", "content": "a"}], "reward": 1, **trajectory}


def everything(body, trajectory):
    """A job with every kind of nesting, and with text that looks like JSON."""
    odd = [
        trajectory(i, logs=TEXTS, metadata={text: text for text in TEXTS}, extra={"a": [[{}], {"b": []}]})
        for i in (0, 1)
    ]
    groups = [{"trajectories": odd, "note": TEXTS}, {"trajectories": []}, {"more": {"x": 1}, "trajectories": odd[:1]}]
    return body(ID, trajectory_groups=groups, experimental_config={"epsilon": 0.5, "new": TEXTS}, more=[TEXTS])


def as_whole(text):
    return CreateTrainingJob.model_validate_json(text)


def places(path):
    with pytest.raises(InvalidBodyError) as caught:
        job_upload.check(path)
    return [error.loc for error in caught.value.errors]


@pytest.mark.parametrize("indent", [None, 3])
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("backwards", [True, False])
def test_what_is_read_is_what_the_whole_text_holds(file, piece, body, trajectory, indent, ascii_only, backwards):
    job = everything(body, trajectory)
    job = dict(reversed(job.items())) if backwards else job
    text = json.dumps(job, indent=indent, ensure_ascii=ascii_only)
    path, whole = file(text), as_whole(text)
    assert job_upload.check(path) == whole.model_copy(update={"trajectory_groups": []})
    config, groups = job_upload.read(path)
    assert config == whole.experimental_config
    assert [list(group) for group in groups] == [group.trajectories for group in whole.trajectory_groups]


def test_a_group_that_is_not_read_to_its_end_is_passed_over(file, body, trajectory):
    path = file(json.dumps(everything(body, trajectory)))
    _, groups = job_upload.read(path)
    assert [[t.reward for _, t in zip(range(1), group, strict=False)] for group in groups] == [[0.0], [], [0.0]]


@pytest.mark.parametrize("config", [{}, {"experimental_config": None}])
def test_a_job_without_options_has_none(file, body, config):
    path = file(json.dumps(body(ID, **config)))
    assert job_upload.check(path).experimental_config is None
    assert job_upload.read(path)[0] is None


WRONG = [
    (("model_id",), "x"),
    (("trajectory_groups",), {"trajectories": []}),
    (("trajectory_groups",), None),
    (("trajectory_groups", 0), 5),
    (("trajectory_groups", 0), []),
    (("trajectory_groups", 0, "trajectories"), "x"),
    (("trajectory_groups", 0, "trajectories", 1), None),
    (("trajectory_groups", 0, "trajectories", 1), [1]),
    (("trajectory_groups", 0, "trajectories", 1, "reward"), True),
    (("trajectory_groups", 0, "trajectories", 1, "messages_and_choices", 0, "role"), "robot"),
    (("trajectory_groups", 0, "trajectories", 1, "messages_and_choices", 1, "logprobs", "content", 2, "logprob"), "x"),
    (("trajectory_groups", 0, "trajectories", 1, "logs"), [1, 2]),
    (("experimental_config",), 3),
    (("experimental_config",), {"epsilon": -1, "ppo": 1}),
]


@pytest.mark.parametrize(("path", "value"), WRONG)
def test_what_is_wrong_is_found_where_it_is_found_in_the_whole(file, body, path, value):
    job = body(ID)
    place = job
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    text = json.dumps(job)
    with pytest.raises(pydantic.ValidationError) as caught:
        CreateTrainingJob.model_validate(from_json(text))
    whole = locate(caught.value.errors(), from_json(text), ("body",))
    assert places(file(text)) == [error.loc for error in whole]


@pytest.mark.parametrize("name", ["model_id", "trajectory_groups"])
def test_what_is_missing_is_named(file, body, name):
    job = body(ID)
    del job[name]
    assert places(file(json.dumps(job))) == [["body", name]]


def test_what_is_missing_inside_is_named_at_its_place(file, body):
    job = body(ID)
    del job["trajectory_groups"][0]["trajectories"][1]["reward"]
    job["trajectory_groups"].append({})
    assert places(file(json.dumps(job))) == [
        ["body", "trajectory_groups", 0, "trajectories", 1, "reward"],
        ["body", "trajectory_groups", 1, "trajectories"],
    ]


def test_a_body_with_more_errors_than_anyone_reads_has_some_tens_reported(file, body):
    job = body(ID, trajectory_groups=[{"trajectories": [5] * 10_000}])
    assert len(places(file(json.dumps(job)))) == 50
    job = body(ID, trajectory_groups=[{"trajectories": [plain({"logs": [5] * 10_000})] * 60}])
    wrong = places(file(json.dumps(job)))
    assert wrong[:2] == [["body", "trajectory_groups", 0, "trajectories", i, "logs", 0] for i in range(2)]
    assert len(wrong) == 50


@pytest.mark.parametrize("kind", ["content", "refusal"])
@pytest.mark.parametrize("history", [0, 1])
def test_a_logprob_of_no_probability_is_refused_at_its_place(file, body, trajectory, kind, history):
    job = body(ID, trajectory_groups=[{"trajectories": [trajectory(1.0), trajectory(0.0)]}])
    wrong = job["trajectory_groups"][0]["trajectories"][1]
    if history:
        wrong["additional_histories"] = [{"messages_and_choices": wrong.pop("messages_and_choices")}]
        wrong["messages_and_choices"] = []
    place = ["additional_histories", 0] if history else []
    logprobs = (wrong["additional_histories"][0] if history else wrong)["messages_and_choices"][1]["logprobs"]
    logprobs[kind] = logprobs.pop("content")
    logprobs[kind][2]["logprob"] = 1e-6  # rounding
    job_upload.check(file(json.dumps(job)))
    logprobs[kind][2]["logprob"] = 0.5
    loc = ["trajectory_groups", 0, "trajectories", 1, *place, "messages_and_choices", 1, "logprobs", kind, 2, "logprob"]
    assert places(file(json.dumps(job))) == [["body", *loc]]


def inside(text):
    """A body with this text as its first trajectory."""
    return b'{"model_id": "%s", "trajectory_groups": [{"trajectories": [%s]}]}' % (ID.encode(), text)


NO_JSON = {
    b"": [],
    b"  ": [],
    b"[" * 100_000: [],
    b'{"a":' * 100_000: ["a"],
    b"NaN": [],
    b"[]": [],
    b"5": [],
    b"{} {}": [],
    b"{}x": [],
    b"\xff\xfe{}": [],
    b"{'a': 1}": [],
    b"{,}": [],
    b'{"a" 1}': [],
    b'{"a": }': ["a"],
    b'{"a": 1,}': [],
    b'{"a": 1 "b": 2}': [],
    b'{"a": tru}': [],
    b'{"a": -Infinity}': [],
    b'{"a": NaN}': ["a"],
    b'{"a": [1, {"b": NaN}]}': ["a"],
    b'{"a": 1, "a": 2}': ["a"],
    b'{"\\ud83d": 1}': [],
    b'{"a": "\\ud83d"}': [],
    b'{"a": [}}': [],
    b'{"trajectory_groups": [,]}': ["trajectory_groups", 0],
    b'{"trajectory_groups": [{"trajectories": [{} {}]}]}': [*GROUP, "trajectories"],
    b'{"trajectory_groups": [{"trajectories": [{}': [*GROUP, "trajectories"],
    b'{"trajectory_groups": [{"trajectories": [], "trajectories": []}]}': [*GROUP, "trajectories"],
    inside(b"[" * 100_000 + b"]" * 100_000): TRAJECTORY,
    inside(b'{"reward": NaN}'): TRAJECTORY,
    inside(b'{"reward": "\\ud83d", "messages_and_choices": []}'): [*TRAJECTORY, "reward"],
    inside(b'{"reward": "\xff", "messages_and_choices": []}'): [*TRAJECTORY, "reward"],
    inside(b'{"reward": 1, "logs": ["\n"]}'): TRAJECTORY,
    inside(b'{"reward": 1e999, "messages_and_choices": []}'): [*TRAJECTORY, "reward"],
    inside(b'{"reward": 1, "messages_and_choices": [}'): TRAJECTORY,
    inside(b'{"reward": 1, "messages_and_choices": [)]}'): TRAJECTORY,
    inside(b'{"reward": 01, "messages_and_choices": []}'): TRAJECTORY,
    inside(b'{"reward": 1, "messages_and_choices": []'): [*GROUP, "trajectories"],
}


@pytest.mark.parametrize("text", NO_JSON, ids=lambda text: text[:50].decode(errors="replace"))
def test_what_is_not_json_is_refused_with_the_place_where_it_stops_being(file, piece, text):
    assert ["body", *NO_JSON[text]] in places(file(text))


@pytest.mark.parametrize("end", range(0, 700, 13))
def test_a_body_that_breaks_off_is_refused(file, body, end):
    text = json.dumps(body(ID))
    assert places(file(text[:end]))


MANY = 200_000
SMALL = {"messages_and_choices": [], "reward": 1}


@pytest.mark.parametrize(
    "groups",
    [
        [{"trajectories": []}] * (MANY // 10),
        [{"trajectories": [SMALL] * (MANY // 10)}],
        [{"trajectories": [SMALL | {"logs": [""] * MANY}]}],
        [{"trajectories": [SMALL | {"more": [0] * MANY}]}],
    ],
    ids=["groups", "trajectories", "logs", "unknown"],
)
def test_many_items_are_accepted(file, body, groups):
    job_upload.check(file(json.dumps(body(ID, trajectory_groups=groups))))
