"""Merging of captured calls into histories."""

import random
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutlab.api.wire.chat import Choice, FunctionTool, UserMessage
from rolloutlab.api.wire.turns import as_message
from rolloutlab.capture.rollout import Call, make_histories

SEARCH = FunctionTool.model_validate({"type": "function", "function": {"name": "search"}})


def user(text: str) -> UserMessage:
    return UserMessage(role="user", content=text)


def answer(text: str, *ids: int, index: int = 0) -> Choice:
    content = [{"token": "t", "logprob": -0.5, "top_logprobs": [], "token_id": i} for i in ids or (1, 2)]
    message = {"role": "assistant", "content": text}
    return Choice.model_validate(
        {"index": index, "finish_reason": "stop", "message": message, "logprobs": {"content": content}}
    )


def after(call: Call, *messages: Any, choice: int = 0) -> list[Any]:
    return [*call.messages, as_message(call.choices[choice]), *messages]


def shape(calls: Sequence[Call]) -> list[str]:
    """Histories as texts: `q` a message, `[a]` an answer that trains, `a` one that is context."""
    return [
        " ".join(
            f"[{item.message.content}]" if isinstance(item, Choice) else str(item.content)
            for item in history.messages_and_choices
        )
        for history in make_histories(calls)
    ]


def test_a_call_that_begins_with_an_answer_and_what_was_before_it_goes_on_with_the_history():
    one = Call([user("q1")], [answer("a1")])
    two = Call(after(one, user("q2")), [answer("a2")])
    three = Call(after(two, user("q3")), [answer("a3")])
    assert shape([one, two, three]) == ["q1 [a1] q2 [a2] q3 [a3]"]


def test_a_sub_agent_has_a_history_of_its_own():
    one = Call([user("q1")], [answer("delegate")])
    sub = Call([user("task")], [answer("done")])
    two = Call(after(one, user("done")), [answer("a2")])
    assert shape([one, sub, two]) == ["q1 [delegate] done [a2]", "task [done]"]


def test_a_summary_begins_a_history():
    one = Call([user("q1")], [answer("a1")])
    assert shape([one, Call([user("summary of q1"), user("q2")], [answer("a2")])]) == [
        "q1 [a1]",
        "summary of q1 q2 [a2]",
    ]


def test_an_answer_that_two_calls_continue_trains_once_and_is_context_with_its_tokens_in_the_other():
    one = Call([user("q1")], [answer("a1", 7, 8)])
    two, other = (Call(after(one, user(q)), [answer(f"to {q}")]) for q in ("left", "right"))
    assert shape([one, two, other]) == ["q1 [a1] left [to left]", "q1 a1 right [to right]"]
    assert make_histories([one, two, other])[1].messages_and_choices[1].token_ids == [7, 8]


def test_each_of_n_choices_can_be_continued_and_the_continued_one_is_the_main_history():
    one = Call([user("q1")], [answer("a", 1), answer("b", 2), answer("c", 3)])
    two = Call(after(one, user("q2"), choice=1), [answer("d")])
    assert shape([one, two]) == ["q1 [b] q2 [d]", "q1 [a]", "q1 [c]"]


def test_equal_answers_train_each_once_and_are_continued_one_after_the_other():
    one = Call([user("q1")], [answer("same"), answer("same")])
    two, three = (Call(after(one, user(q)), [answer(q.upper())]) for q in "xy")
    assert shape([one, two, three]) == ["q1 [same] x [X]", "q1 [same] y [Y]"]


def test_an_answer_asked_again_in_the_same_words_is_an_alternative_and_the_one_that_goes_on_is_the_main_one():
    one, again = Call([user("q1")], [answer("bad")]), Call([user("q1")], [answer("good")])
    assert shape([one, again, Call(after(again, user("q2")), [answer("a2")])]) == ["q1 [good] q2 [a2]", "q1 [bad]"]


def test_other_tools_begin_a_history_as_the_policy_reads_another_prompt():
    one = Call([user("q1")], [answer("a1")], [SEARCH])
    two = Call(after(one, user("q2")), [answer("a2")])
    assert shape([one, two]) == ["q1 [a1]", "q1 a1 q2 [a2]"]
    assert [history.tools for history in make_histories([one, two])] == [[SEARCH], None]


def test_an_answer_whose_tokens_were_not_read_is_context():
    one = Call([user("q1")], [answer("a1")])
    text = Choice.model_validate(one.choices[0].to_wire() | {"logprobs": None})
    two = Call([user("q1"), as_message(text), user("q2")], [answer("a2")])
    assert shape([one, two]) == ["q1 [a1]", "q1 a1 q2 [a2]"]


def test_an_answer_that_a_retry_replaced_does_not_train():
    lost, again = Call([user("q1")], [answer("lost")]), Call([user("q1")], [answer("read")], retry=1)
    assert shape([lost, again]) == ["q1 [read]"]
    assert shape([lost, again, Call(after(again, user("q2")), [answer("a2")])]) == ["q1 [read] q2 [a2]"]


def test_a_retry_replaces_one_answer_and_none_that_was_read():
    same = [Call([user("q1")], [answer(text)]) for text in ("x", "y", "z")]
    again = Call([user("q1")], [answer("w")], retry=1)
    goes_on = [Call(after(each, user("q2")), [answer("a")]) for each in (same[2], again)]
    assert shape([*same, again, *goes_on]) == ["q1 [z] q2 [a]", "q1 [w] q2 [a]", "q1 [x]"]


def test_a_retry_with_the_same_answer_is_the_one_that_was_read():
    lost, again = Call([user("q1")], [answer("a")]), Call([user("q1")], [answer("a")], retry=1)
    assert shape([lost, again, Call(after(again, user("q2")), [answer("b")])]) == ["q1 [a] q2 [b]"]


def test_nothing_is_a_history_of_no_calls():
    assert make_histories([]) == []


def test_a_conversation_of_hundreds_of_turns_is_one_history():
    calls = [Call([user("q")], [answer("a")])]
    for _ in range(300):
        calls.append(Call(after(calls[-1], user("q")), [answer("a")]))
    assert len(shape(calls)) == 1


@st.composite
def programs(draw: st.DrawFn) -> list[Call]:
    """Calls of a program that begins, continues, branches, asks again and retries, with few texts."""
    random_ = random.Random(draw(st.integers(0, 2**32)))
    calls: list[Call] = []
    for _ in range(draw(st.integers(0, 12))):
        messages, retry = [user(random_.choice("pq"))], 0
        kind = random_.choice(["new", "goes on", "goes on", "goes on", "again", "retry"]) if calls else "new"
        one = random_.choice(calls) if calls else None
        if one and kind == "goes on":
            texts = [user(random_.choice("rs")) for _ in range(random_.randint(1, 2))]
            messages = after(one, *texts, choice=random_.randrange(len(one.choices)))
        elif one and kind in {"again", "retry"}:
            messages, retry = list(one.messages), one.retry + (kind == "retry")
        tools = one.tools if one and random_.random() < 0.9 else random_.choice([(), (SEARCH,)])
        texts = [random_.choice("ab") for _ in range(random_.choice([1, 1, 1, 2, 3]))]
        choices = [answer(text, random_.choice([1, 2]), index=i) for i, text in enumerate(texts)]
        calls.append(Call(messages, choices, tools, retry))
    return calls


Told = list[Any]


def told(messages: Sequence[Any]) -> Told:
    return [message.to_wire() for message in messages]


def naive(calls: Sequence[Call]) -> tuple[list[str], list[str]]:
    """The messages of each history, and those up to each answer that trains."""
    left = list(calls)

    def place(call: Call) -> int:
        return next(i for i, each in enumerate(left) if each is call)

    for call in calls:

        def was_read(other: Call, call: Call = call) -> bool:
            ends = [told(after(other, choice=i)) for i in range(len(other.choices))]
            own = [told(after(call, choice=i)) for i in range(len(call.choices))]
            return any(
                told(each.messages)[: len(end)] == end and list(each.tools) == list(other.tools)
                for each in calls
                for end in ends
                if end not in own
            )

        before = left[: place(call)]
        same = [
            each
            for each in before
            if told(each.messages) == told(call.messages)
            and list(each.tools) == list(call.tools)
            and each.retry < call.retry
            and not was_read(each)
        ]
        if same:
            lost = max(same, key=lambda each: (each.retry, place(each)))
            left = [each for each in left if each is not lost]
    turns = [(call, i, told(after(call, choice=i))) for call in left for i in range(len(call.choices))]
    continued: list[int] = []
    for call in left:
        fits = [
            t
            for t, (other, _, end) in enumerate(turns)
            if place(call) > place(other)
            and list(other.tools) == list(call.tools)
            and told(call.messages)[: len(end)] == end
        ]
        longest = max((len(turns[t][2]) for t in fits), default=0)
        fits = [t for t in fits if len(turns[t][2]) == longest]
        if fits:
            continued.append(next((t for t in fits if t not in continued), fits[0]))
    ends = [end for t, (_, _, end) in enumerate(turns) if t not in continued]
    return sorted(map(str, ends)), sorted(str(end) for *_, end in turns)


@settings(max_examples=300, deadline=None)
@given(programs())
def test_merging_is_as_a_naive_second_implementation_has_it(calls):
    made = make_histories(calls)
    whole = [told([as_message(item) for item in history.messages_and_choices]) for history in made]
    trained = [
        whole[h][: i + 1]
        for h, history in enumerate(made)
        for i, item in enumerate(history.messages_and_choices)
        if isinstance(item, Choice)
    ]
    assert (sorted(map(str, whole)), sorted(map(str, trained))) == naive(calls)
    if made:
        first = told(calls[0].messages)
        assert whole[0][: len(first)] == first or any(call.retry for call in calls)
