"""A group as plain values: turn by turn, with what tools answered, and its tokens."""

import json
from typing import Any

import pytest

from rolloutlab.api.wire.chat import AssistantMessage, Choice, FunctionMessage, ToolMessage, UserMessage
from rolloutlab.store.models import StoredTrajectory
from rolloutlab.widgets.group import ConversationTexts, conversation, piece, tokens_of, turns


def choice(answer: str | None, *tokens: Any, **message: Any) -> Choice:
    content = [{"logprob": -0.5, "top_logprobs": [], **({"token": t} if isinstance(t, str) else t)} for t in tokens]
    text = {"role": "assistant", "content": answer, **message}
    record = {"finish_reason": "stop", "index": 0, "message": text, "logprobs": {"content": content}}
    return Choice.model_validate(record)


def trajectory(*items: Any, **overrides: Any) -> StoredTrajectory:
    record = {"id": 1, "name": "capitals/0/3", "row": {}, "model": "lab/x", "step": 2, "sampling": {}}
    return StoredTrajectory(**record | {"created_at": "", "items": items, "given": 0} | overrides)


def test_what_a_tool_answered_is_inside_the_call_that_asked() -> None:
    calls = [{"id": str(i), "type": "function", "function": {"name": f"f{i}", "arguments": "{}"}} for i in range(2)]
    response = [ToolMessage(role="tool", content=f"answer {i}", tool_call_id=str(i)) for i in (1, 0, 7)]
    matches = turns([choice(None, "x", tool_calls=calls), *response], ConversationTexts())
    assert [(call["name"], call["result"]["text"]) for call in matches[0]["calls"]] == [
        ("f0", "answer 0"),
        ("f1", "answer 1"),
    ]
    assert [(turn["role"], turn["content"]["text"]) for turn in matches[1:]] == [("tool", "answer 7")]
    assert matches[0]["content"] is None


def test_only_what_was_sampled_with_logprobs_is_said_to_be_sampled() -> None:
    items = [
        choice("a", "a"),
        choice("b"),
        AssistantMessage(role="assistant", content="c"),
        UserMessage(role="user", content="d"),
    ]
    assert [turn["sampled"] for turn in turns(items, ConversationTexts())] == [True, False, False, False]


@pytest.mark.parametrize(
    ("message", "name", "text"),
    [
        ({"content": None, "refusal": "no"}, "refusal", "no"),
        ({"content": "yes", "reasoning_content": "hm"}, "reasoning", "hm"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "content", "ab"),
    ],
)
def test_every_part_of_a_message_is_shown(message: dict[str, Any], name: str, text: str) -> None:
    (turn,) = turns([AssistantMessage.model_validate({"role": "assistant", **message})], ConversationTexts())
    assert turn[name]["text"] == text


def test_what_is_no_text_is_named() -> None:
    parts = [{"type": "text", "text": "Look: "}, {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}]
    (turn,) = turns([UserMessage.model_validate({"role": "user", "content": parts})], ConversationTexts())
    assert turn["content"]["text"] == "Look: [image_url: https://a.example/b.png]"


def test_an_unusual_end_is_flagged_in_words() -> None:
    cut = choice("a", "a").model_copy(update={"finish_reason": "length"})
    assert conversation(trajectory(cut), ConversationTexts())["flag"] == "cut off by max_tokens"
    assert conversation(trajectory(choice("a", "a")), ConversationTexts())["flag"] is None
    assert conversation(trajectory(), ConversationTexts())["finish"] == "nothing was sampled"


def test_of_many_long_texts_the_first_show_more_than_the_last() -> None:
    texts = ConversationTexts(1000)
    shown = [len(texts.add("x" * 700)["text"]) for _ in range(3)]
    assert shown == [700, 300, 300]


def test_a_piece_never_ends_inside_a_line_end() -> None:
    assert piece("ab\r\ncd", 0, 3) == {"text": "ab\n", "end": 4, "size": 6}


def test_further_conversations_and_logs_are_there() -> None:
    further = {"messages_and_choices": [{"role": "user", "content": "more"}]}
    shown = conversation(
        trajectory(choice("a", "a"), extra={"additional_histories": [further], "logs": ["late"]}), ConversationTexts()
    )
    assert shown["branches"][0]["turns"][0]["content"]["text"] == "more"
    assert shown["logs"][0]["text"] == "late"


def test_tokens_come_in_columns_some_at_a_time() -> None:
    whole = trajectory(choice("a b", "a", " b", "<end>"), choice("c", "c", "<end>"))
    first = tokens_of(whole, 0, limit=4)
    assert [(turn["turn"], turn["text"]) for turn in first["turns"]] == [(0, ["a", " b", "<end>"]), (1, ["c"])]
    rest = tokens_of(whole, first["end"], limit=4)
    assert [(turn["turn"], turn["text"]) for turn in rest["turns"]] == [(1, ["<end>"])]
    assert (first["end"], rest["end"], rest["total"]) == (4, 5, 5)
    json.dumps([first, rest], allow_nan=False)


def test_a_token_that_is_no_part_of_the_text_is_marked() -> None:
    whole = trajectory(choice("a b", "a", " b", "<end>"), choice(None, "<call>", "f", "<end>"))
    assert [turn["outside"] for turn in tokens_of(whole, 0)["turns"]] == [[False, False, True], [True, True, True]]


def test_bytes_that_are_a_part_of_a_character_are_shown_as_bytes() -> None:
    tokens = [
        {"token": "\ufffd", "bytes": [0xE2, 0x82]},
        {"token": "\ufffd", "bytes": [0xAC]},
        {"token": "!", "bytes": [33]},
    ]
    (turn,) = tokens_of(trajectory(choice("€!", *tokens)), 0)["turns"]
    assert turn["text"] == ["⟨e2 82⟩", "⟨ac⟩", "!"]
    assert turn["outside"] == [False, False, False]


def test_a_tokens_rank_and_what_else_was_likely_are_told_where_they_are_known() -> None:
    top = [{"token": "Lyon", "logprob": -0.1}, {"token": "Nice", "logprob": -0.4}, {"token": "a", "logprob": -0.5}]
    (turn,) = tokens_of(trajectory(choice("ab", {"token": "a", "top_logprobs": top}, "b")), 0)["turns"]
    assert turn["rank"] == [3, None]
    assert turn["instead"] == [[["Lyon", -0.1], ["Nice", -0.4]], None]


@pytest.mark.parametrize(
    "then", [choice(None, "the end"), UserMessage.model_validate({"role": "user", "content": "and?"})]
)
def test_only_a_message_of_a_function_is_the_result_of_a_call_without_an_id(then):
    called = {"role": "assistant", "content": None, "function_call": {"name": "g", "arguments": "{}"}}
    call = AssistantMessage.model_validate(called)
    made = turns([call, then], ConversationTexts())
    assert [len(turn["calls"]) for turn in made] == [1, 0]
    assert made[0]["calls"][0]["result"] is None
    result = FunctionMessage.model_validate({"role": "function", "name": "g", "content": "3"})
    [turn] = turns([call, result], ConversationTexts())
    assert turn["calls"][0]["result"] is not None
