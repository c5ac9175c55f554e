"""Completions with reasoning, as functions of other libraries get them: what a trainer decodes from the tokens."""

import json
import re
import sys
from types import ModuleType
from typing import Any

import pytest

from rolloutlab.api.wire.chat import ToolMessage, UserMessage
from rolloutlab.integrations.verifiers import reward as verifiers_reward
from rolloutlab.store.models import NewGroup
from tests.labs import completion, lab_with

MARKED = re.compile(r"^<think>(?!.*<think>)(.*?)</think>.*$", re.DOTALL)
BECAUSE = "<think>\nbecause\n</think>\n\n42"


def thought(
    answer: str | None, field: str = "reasoning_content", finish: str = "stop", calls: Any = None, **extra: Any
):
    """A completion whose service split "because" from its answer."""
    message = {"role": "assistant", "content": answer, field: "because", **({"tool_calls": calls} if calls else {})}
    return completion("", message=message, finish_reason=finish, **extra)


def tokens_of(*texts: str) -> dict[str, Any]:
    return {"content": [{"token": text, "logprob": -0.5, "top_logprobs": []} for text in texts]}


@pytest.fixture
def given(lab):
    """What a function of another library gets of these items, under a parameter."""

    def get(items: Any, parameter: str = "completions", wrap: Any = None, tools: bool = False, **row: Any) -> Any:
        prompt = NewGroup([UserMessage(role="user", content="Why?")], row)
        extra = {"tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}]} if tools else {}
        name = lab_with(lab.store, [items], prompts=[prompt], extra=extra, name="c").label
        seen: list[Any] = []

        def trl(completions, **columns):
            seen.append({"completions": completions[0], **columns})
            return [1.0]

        def verl(solution_str, ground_truth):
            seen.append({"solution_str": solution_str})
            return 1.0

        function = {"completions": trl, "solution_str": verl}.get(parameter) or wrap(seen)
        lab.reward(name, function, say=lambda _: None)
        assert lab.collection(name).trajectories[0].reward == 1.0
        return seen[0][parameter]

    return get


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_the_reasoning_that_a_service_split_off_is_put_before_the_answer_again(given, field):
    assert given(thought("42", field)) == BECAUSE
    assert given(thought("42", field), "solution_str", ground_truth="42") == BECAUSE
    assert given(thought("42", field), prompt=[{"role": "user", "content": "Why?"}]) == [
        {"role": "assistant", "content": BECAUSE}
    ]


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["<think>", "\n", "be", "cause", "</think>", " 42", "<|im_end|>"], "<think>\nbecause</think> 42"),
        (
            ["be", "cause\n", "</think>", "\n\n42", "<\uff5cend\u2581of\u2581sentence\uff5c>"],
            "because\n</think>\n\n42",
        ),
        (["<think>because</think>", "42\n", "</s>"], "<think>because</think>42"),
        (["42"], BECAUSE),  # a service with logprobs of the answer alone
        (["x", "y"], BECAUSE),
    ],
)
def test_where_tokens_have_it_the_text_is_as_it_was_sampled(given, tokens, text):
    assert given(thought("42", logprobs=tokens_of(*tokens))) == text


def test_the_bytes_of_tokens_come_before_their_texts(given):
    letters = [{"token": "\ufffd", "bytes": [each], "logprob": -0.5, "top_logprobs": []} for each in "é".encode()]
    rest = [{"token": t, "bytes": list(t.encode()), "logprob": -1, "top_logprobs": []} for t in ("because</think>",)]
    assert given(thought("é", logprobs={"content": rest + letters})) == "because</think>é"


def test_a_special_token_that_the_answer_shows_is_part_of_it(given):
    tokens = tokens_of("because", "</think>", "say ", "<|x|>", "<|im_end|>")
    assert given(thought("say <|x|>", logprobs=tokens)) == "because</think>say <|x|>"


def test_a_thought_that_was_cut_off_has_no_end(given):
    assert given(thought("", finish="length")) == "<think>\nbecause"
    assert given(thought(None, finish="length"), "solution_str", ground_truth="") == "<think>\nbecause"
    assert not MARKED.match(given(thought("", finish="length")))
    assert MARKED.match(given(thought("", finish="stop")))


def test_reasoning_within_the_content_stays_there_and_is_not_written_twice(given):
    assert given(completion(BECAUSE)) == BECAUSE
    assert given(completion("<think>half")) == "<think>half"


CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TALK = [
    thought(None, calls=[CALL], finish="tool_calls"),
    ToolMessage(role="tool", content="7", tool_call_id="1"),
    thought("7"),
]


def test_with_tools_trl_gets_parsed_messages_with_arguments_as_values(given):
    first, tool, last = given(TALK, tools=True)
    call = {**CALL, "function": {"name": "add", "arguments": {"a": 1}}}
    assert first == {"role": "assistant", "content": "", "reasoning_content": "because", "tool_calls": [call]}
    assert (tool["role"], tool["content"]) == ("tool", "7")
    assert last == {"role": "assistant", "content": "7", "reasoning_content": "because"}
    (inline,) = given(completion(BECAUSE), tools=True)
    assert inline == last | {"content": "42"}


def test_verl_gets_all_turns_of_a_talk_as_one_text(given):
    text = given(TALK, "solution_str", tools=True, ground_truth="7")
    called = f"<tool_call>\n{json.dumps({'name': 'add', 'arguments': {'a': 1}})}\n</tool_call>"
    think = "<think>\nbecause\n</think>\n\n"
    assert text == f"{think}\n{called}\ntool\n7\nassistant\n{think}7"


def test_trl_does_not_pass_columns_called_as_its_own_arguments(given, lab):
    assert given(completion("a"), completion="from the row", completion_ids=[1]) == "a"

    def others(completions, **columns):
        assert not columns.keys() & {"completion", "completion_ids"}
        return [0.0]

    lab.reward("c", others, overwrite=True)


def test_trl_passes_token_ids_to_a_function_of_any_keyword(lab):
    ids = [{"token": "a", "token_id": i, "logprob": -0.5, "top_logprobs": []} for i in (7, 8)]
    lab_with(lab.store, [completion("a", logprobs={"content": ids})])
    lab.reward("capitals", lambda completions, **kwargs: [float(sum(ids)) for ids in kwargs["completion_ids"]])
    assert lab.collection("capitals").trajectories[0].reward == 15.0


# verifiers: as the service gave it, unless a function or parser reads marks


def content_of(seen):
    def content(completion):
        seen.append({"completion": completion})
        return 1.0

    return content


def marks_of(seen):
    def marks(completion):
        seen.append({"completion": completion})
        return float(completion[-1]["content"].startswith("<think>"))

    return marks


PATTERN = re.compile(r"<think>.*</think>")


def pattern_of(seen):
    def pattern(completion):
        seen.append({"completion": completion})
        return float(PATTERN.search(completion[-1]["content"].replace("\n", "")) is not None)

    return pattern


def test_verifiers_gets_reasoning_in_the_field_that_it_knows(lab, given):
    (message,) = given(thought("42", "reasoning"), "completion", lambda seen: verifiers_reward(content_of(seen)))
    assert (message["content"], message.reasoning_content) == ("42", "because")
    assert "reasoning" not in message


@pytest.mark.parametrize("make", [marks_of, pattern_of])
def test_a_function_that_reads_marks_gets_them(lab, given, make):
    (message,) = given(thought("42"), "completion", lambda seen: verifiers_reward(make(seen)))
    assert message["content"] == BECAUSE


def test_a_parser_of_thoughts_gets_marks_and_a_line_says_so(lab, monkeypatch, capsys):
    class ThinkParser:
        """As that of verifiers."""

    module = ModuleType("verifiers")
    monkeypatch.setitem(sys.modules, "verifiers", module)
    lab_with(lab.store, [thought("42")])
    of_parser = verifiers_reward(
        lambda completion, parser: float(completion[-1]["content"] == BECAUSE), parser=ThinkParser()
    )
    lab.reward("capitals", of_parser, say=print)
    assert lab.collection("capitals").trajectories[0].reward == 1.0
    assert "reasoning is in content" in capsys.readouterr().out
