"""Bodies that are not what they must be: always a refusal that says where, never a failure of the service."""

import copy
import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TOKEN = "of-this-test"
MESSAGE = {"role": "user", "content": "a"}
ANSWER = {"role": "assistant", "content": "b"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}
SAMPLED = {"token": "a", "token_id": 30, "logprob": -1.5, "top_logprobs": [], "bytes": [97]}
CHOICE = {"finish_reason": "stop", "index": 0, "message": ANSWER, "logprobs": {"content": [SAMPLED]}}
UNKNOWN = "00000000-0000-4000-8000-000000000000"
TRAJECTORY = {
    "messages_and_choices": [MESSAGE, CHOICE],
    "reward": 1.0,
    "additional_histories": [{"messages_and_choices": [MESSAGE, ANSWER], "tools": [TOOL]}],
    "metrics": {"length": 3},
    "metadata": {"seed": 1},
    "logs": ["scored"],
    "start_time": "2026-01-31T12:00:00Z",
}

Path = tuple[str | int, ...]


@dataclass
class Endpoint:
    """Where a body is sent, and a valid one."""

    method: str
    path: str
    body: Any


ENDPOINTS = {
    "chat": Endpoint(
        "POST",
        "/v1/chat/completions",
        {
            "model": "tiny",
            "messages": [MESSAGE, {"role": "assistant", "content": None, "tool_calls": [CALL]}, MESSAGE],
            "n": 1,
            "max_tokens": 1,
            "temperature": 0.5,
            "stop": ["x"],
            "seed": 1,
            "tools": [TOOL],
            "tool_choice": "none",
            "stream_options": {"include_usage": True},
        },
    ),
    "logprobs": Endpoint(
        "POST", "/v1/preview/logprobs", {"model": "tiny", "histories": [{"messages_and_choices": [MESSAGE, CHOICE]}]}
    ),
    "models": Endpoint(
        "POST", "/v1/preview/models", {"project": "lab", "name": "first", "entity": "local", "return_existing": True}
    ),
    "checkpoints": Endpoint("DELETE", "/v1/preview/models/{model}/checkpoints", {"steps": [7, 8]}),
    "jobs": Endpoint(
        "POST",
        "/v1/preview/training-jobs",
        {
            "model_id": UNKNOWN,  # nothing trains: it is refused once all of it was read
            "trajectory_groups": [{"trajectories": [TRAJECTORY]}],
            "experimental_config": {"epsilon": 0.2, "ppo": True, "importance_sampling_level": "token"},
        },
    ),
}
SIDES = pytest.mark.parametrize("name", ENDPOINTS)

Send = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def policy(policy):
    """The tiny policy whose chat template writes the name of a call, so that a body with one is valid."""
    tokenizer = copy.deepcopy(policy.tokenizer)
    calls = "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}</s>"
    tokenizer.chat_template = tokenizer.chat_template.replace("</s>", calls)
    return replace(policy, tokenizer=tokenizer)


@pytest.fixture
def send(service) -> Send:
    """Sends whatever bytes to an endpoint; the application's own errors would be raised here."""
    model = service.register()

    def post(name: str, content: Any, **headers: str) -> httpx.Response:
        endpoint = ENDPOINTS[name]
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        head = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", **headers}
        url = service.address.base_url + endpoint.path.format(model=model.id)

        async def answer() -> httpx.Response:
            async with httpx.AsyncClient(transport=service.http._transport, headers=head, timeout=None) as client:
                return await client.request(endpoint.method, url, content=text)

        return service.http.run(answer())

    return post


def place(response: httpx.Response) -> Path:
    """Where the first thing is wrong, as a path into the body."""
    said = response.json()
    if "error" in said:
        assert set(said["error"]) == {"message", "type", "param", "code"}
        param = said["error"]["param"]
        return () if param in {None, "body"} else tuple(int(p) if p.isdigit() else p for p in param.split("."))
    if isinstance(said["detail"], str):
        return ()
    assert all(problem["loc"][0] == "body" and problem["msg"] for problem in said["detail"])
    return tuple(said["detail"][0]["loc"][1:])


def refused(response: httpx.Response) -> bool:
    return 400 <= response.status_code < 500 and place(response) is not None


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """The path of every value in a body."""
    yield path
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield from places(inner, (*path, step))


def changed(body: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    body = here = json.loads(json.dumps(body))  # a deep copy would keep the parts that it shares shared
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] = value
    return body


@SIDES
def test_the_bodies_of_these_tests_are_valid(send, name):
    response = send(name, ENDPOINTS[name].body)
    assert response.status_code == (404 if name == "jobs" else 200), response.text


@SIDES
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_body_that_breaks_off_is_refused(send, name, data):
    text = json.dumps(ENDPOINTS[name].body).encode()
    assert refused(send(name, text[: data.draw(st.integers(0, len(text) - 1))]))


NUMBERS = [0, -1, 1.5, 10**400, -(10**400), 1e308]
TEXTS = ["", "x", "é\u2028\0", "x" * 100_000, "null", "-0", "0" * 50]
SHAPES = [[], [[]], [None], [{}] * 3, {}, {"": {}}, {"type": "function"}, {"role": "user"}, {"type": None}]
WRONG = st.sampled_from([None, True, *NUMBERS, *TEXTS, *SHAPES])


@SIDES
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_wrong_value_at_any_depth_is_refused_where_it_is_or_makes_sense(send, name, data):
    body = ENDPOINTS[name].body
    path = data.draw(st.sampled_from(list(places(body))))
    value = data.draw(WRONG)
    response = send(name, changed(body, path, value))
    assert response.status_code < 500, response.text
    if response.status_code in {400, 422} and (found := place(response)):
        assert found[: len(path)] == path or path[: len(found)] == found or found[:-1] == path[: len(found) - 1], (
            path,
            found,
            str(value)[:40],
        )


@SIDES
def test_what_is_no_number_of_json_is_refused_wherever_it_stands(send, name):
    body = {**ENDPOINTS[name].body, "more": {"x": [1]}}
    for path, number in zip(places(body), cycle(["NaN", "Infinity", "-Infinity"]), strict=False):
        text = json.dumps(changed(body, path, math.pi)).replace(str(math.pi), number)
        assert refused(send(name, text)), (path, number)
    assert send(name, {**body, "more": "NaN"}).status_code in {200, 404}  # as a text it is fine


@SIDES
def test_a_number_too_large_for_a_float_is_refused_where_a_number_is_read(send, name):
    text = json.dumps({**ENDPOINTS[name].body, "more": math.pi}).replace(str(math.pi), "1e999")
    assert send(name, text).status_code < 500
    for numbers in {"chat": ["temperature"], "jobs": ["reward", "epsilon"]}.get(name, []):
        body = json.dumps(ENDPOINTS[name].body)
        old = {"temperature": "0.5", "reward": "1.0", "epsilon": "0.2"}[numbers]
        assert place(send(name, body.replace(f'"{numbers}": {old}', f'"{numbers}": 1e999')))[-1] == numbers


NO_OBJECTS = [
    b"",
    b"   ",
    b"null",
    b"true",
    b"5",
    b'"x"',
    b"[]",
    b"{}",
    b"\xff\xfe{}",
    b"\xef\xbb\xbf{}",
    b"[" * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    b"{'model': 1}",
    b"{} {}",
    b"/* */ {}",
    b"\0",
    b"1" * 5000,
]


@SIDES
def test_what_is_no_object_of_this_kind_is_refused(send, name):
    for text in NO_OBJECTS:
        assert refused(send(name, text)), text[:20]


BROKEN = [b"\\ud800", b"\\udc00\\ud800", b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\n", b"\0"]


@SIDES
def test_a_string_of_broken_characters_is_refused_wherever_it_stands(send, name):
    body = {**ENDPOINTS[name].body, "more": "here"}
    found = [changed(body, path, "%HERE%") for path in places(body) if "trajectories" not in path[:-1]]
    for i, each in enumerate([*found, {**body, "%HERE%": 1}]):
        text = json.dumps(each).encode().replace(b"%HERE%", BROKEN[i % len(BROKEN)])
        assert refused(send(name, text)), text


def test_inside_a_trajectory_it_is_taken_where_any_text_may_stand(send, service):
    """Its trajectory is left out of the job; where only some texts may stand it is refused as any other would be."""
    model = str(service.register().id)
    body = json.loads(json.dumps(ENDPOINTS["jobs"].body)) | {"model_id": model}
    for i, path in enumerate(path for path in places(body) if "trajectories" in path[:-1]):
        whole = json.dumps(changed(body, path, "%HERE%"))
        text = whole.encode().replace(b"%HERE%", BROKEN[:5][i % 5])
        assert send("jobs", text).status_code == send("jobs", whole).status_code, path


DEEP = ["[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000]


@SIDES
def test_a_value_nested_too_deeply_is_refused_wherever_it_stands(send, name):
    body = ENDPOINTS[name].body
    for path, deep in zip([("more",), *list(places(body))[1::4]], cycle(DEEP), strict=False):
        text = json.dumps(changed(body, path, "%HERE%")).replace('"%HERE%"', deep)
        assert refused(send(name, text)), path


def test_what_is_nested_less_deeply_is_refused_or_answered(send):
    nested: Any = 1
    for _ in range(90):  # as deep as the parser goes, nearly
        nested = {"a": [nested]}
    tool = {"type": "function", "function": {"name": "f", "parameters": nested}}
    for body in (
        {**ENDPOINTS["chat"].body, "tools": [tool]},
        {**ENDPOINTS["chat"].body, "messages": [MESSAGE, {**ANSWER, "more": nested}]},
    ):
        assert send("chat", body).status_code < 500
    history = {"messages_and_choices": [MESSAGE, ANSWER], "tools": [tool]}
    assert send("logprobs", {"model": "tiny", "histories": [history]}).status_code < 500


def test_arguments_of_a_call_may_be_any_text(send):
    for arguments in ["[" * 100_000, '{"a": "\\ud800"}', "1" * 5000, "NaN", "", '{"a": 1', "[]", "0"]:
        call = {**CALL, "function": {"name": "f", "arguments": arguments}}
        said = {"role": "assistant", "tool_calls": [call]}
        assert send("chat", {**ENDPOINTS["chat"].body, "messages": [MESSAGE, said, MESSAGE]}).status_code == 200
        history = {"messages_and_choices": [MESSAGE, said, MESSAGE, ANSWER]}
        assert send("logprobs", {"model": "tiny", "histories": [history]}).status_code == 200


def test_an_assistant_message_with_whatever_a_request_may_carry_is_scored(send):
    for extra in [{"audio": {"id": "a"}}, {"annotations": 5}, {"refusal": "no"}, {"name": "x"}]:
        history = {"messages_and_choices": [MESSAGE, {**ANSWER, **extra}]}
        assert send("logprobs", {"model": "tiny", "histories": [history]}).status_code == 200


def test_a_model_that_is_named_like_no_model_is_not_found(send):
    for model in ["lab/first@" + "1" * 5000, "lab/first\n", "lab/first@0\n", "lab/first@\u0660", "\0", ""]:
        assert send("chat", {**ENDPOINTS["chat"].body, "model": model}).status_code == 404


def test_a_token_that_names_no_id_is_refused(send):
    for token in ["token_id:" + "9" * 5000, "token_id:-1", "token_id:²", "token_id:"]:
        sampled = {"token": token, "logprob": -1, "top_logprobs": []}
        choice = {**CHOICE, "logprobs": {"content": [sampled]}}
        answer = send("logprobs", {"model": "tiny", "histories": [{"messages_and_choices": [MESSAGE, choice]}]})
        assert answer.status_code == 422
        assert "is not in the policy's vocabulary" in answer.text


@SIDES
def test_of_a_name_that_is_there_twice_the_last_counts_or_the_body_is_refused(send, name):
    text = json.dumps(ENDPOINTS[name].body)
    first = next(iter(ENDPOINTS[name].body))
    assert send(name, f'{{"{first}": 5, {text[1:]}').status_code in {200, 404, 422}
    assert refused(send(name, f'{text[:-1]}, "{first}": 5}}'))


@SIDES
def test_a_body_is_read_as_json_whatever_it_calls_itself(send, name):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=x", ""):
        assert send(name, ENDPOINTS[name].body, **{"Content-Type": kind}).status_code in {200, 404}
        assert refused(send(name, b"a=b", **{"Content-Type": kind}))


LONG = 20_000
CHAT = ENDPOINTS["chat"].body
JOB = ENDPOINTS["jobs"].body
PLAIN = {"messages_and_choices": [], "reward": 1}


def job(**trajectory: Any) -> dict[str, Any]:
    return {**JOB, "trajectory_groups": [{"trajectories": [{**PLAIN, **trajectory}]}]}


@pytest.mark.parametrize(
    ("name", "make", "status", "said"),
    [
        ("chat", lambda: {**CHAT, "messages": [MESSAGE] * LONG}, 400, "20,000 messages do not fit into"),
        ("chat", lambda: {**CHAT, "messages": [5] * LONG}, 400, "messages.0"),
        ("chat", lambda: {**CHAT, "stop": ["a"] * 10 * LONG}, 400, "at most 4 items"),
        ("chat", lambda: {**CHAT, "tools": [TOOL] * (LONG // 4)}, 400, "5,000 tools do not fit into"),
        ("chat", lambda: {**CHAT, "messages": [{**MESSAGE, "content": "ab " * LONG}]}, 400, "context_length_exceeded"),
        ("chat", lambda: {**CHAT, "model": "a/" * 5 * LONG}, 404, "there is no model"),
        (
            "logprobs",
            lambda: {"model": "tiny", "histories": [{"messages_and_choices": []}] * (LONG // 4)},
            200,
            "turns",
        ),
        (
            "logprobs",
            lambda: {"model": "tiny", "histories": [{"messages_and_choices": [ANSWER] * LONG}]},
            422,
            "do not fit into",
        ),
        ("models", lambda: {"project": "lab", "name": "x" * 100 * LONG}, 422, "at most 255"),
        ("checkpoints", lambda: {"steps": list(range(1, 10 * LONG + 1))}, 200, "not_found_steps"),
        ("jobs", lambda: {**JOB, "trajectory_groups": [{"trajectories": []}] * LONG}, 404, "no model"),
        ("jobs", lambda: {**JOB, "trajectory_groups": [{"trajectories": [PLAIN] * (LONG // 10)}]}, 404, "no model"),
        ("jobs", lambda: job(logs=["a"] * 10 * LONG), 404, "no model"),
        ("jobs", lambda: job(messages_and_choices=[MESSAGE] * LONG), 404, "no model"),
        ("jobs", lambda: job(additional_histories=[{"messages_and_choices": []}] * (LONG // 4)), 404, "no model"),
    ],
)
def test_others_are_answered_while_a_very_long_array_is_taken_in(send, service, name, make, status, said):
    text = json.dumps(make())
    with ThreadPoolExecutor() as pool:
        work = pool.submit(send, name, text)
        service.call("GET", "/v1/health")
        service.chat(max_tokens=1)
        response = work.result()
    assert response.status_code == status, response.text[:500]
    assert said in response.text
