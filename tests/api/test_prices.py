"""Prices of tokens, bounds of requests, and budgets that no order of requests exceeds."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutlab.api.budget import Budget
from rolloutlab.api.prices import DOLLAR, Tokens, bound, cost, count_billed, price_of, shown
from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest
from rolloutlab.errors import InputError
from rolloutlab.settings import Price

CHEAP, DEAR = Price(0.1, 0.4), Price(1.0, 4.0)


@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("lab/sorter", CHEAP),
        ("lab/sorter@3", CHEAP),
        ("lab/sorter@latest", CHEAP),
        ("lab/sorter@7", DEAR),
        ("wandb-artifact:///team/project/sorter:step12", CHEAP),
        ("qwen3", CHEAP),
        ("qwen3:4b", None),
        ("lab/sorter2", None),
        ("lab", None),
        ("me@home/sorter", None),
        ("me@home", None),
    ],
)
def test_the_price_of_a_name_is_that_of_its_checkpoints_and_of_no_other_name(model, price):
    names = "lab/sorter", "wandb-artifact:///team/project/sorter", "qwen3"
    assert price_of(model, {**dict.fromkeys(names, CHEAP), "lab/sorter@7": DEAR}) == price


def test_the_prices_of_a_service_come_before_those_of_all_services():
    assert price_of("lab/sorter@3", {"lab/sorter": DEAR}, {"lab/sorter@3": CHEAP}) == DEAR
    assert price_of("lab/other", {"lab/sorter": DEAR}, {"lab/other": CHEAP}) == CHEAP


@given(
    st.floats(0, 1e4, allow_nan=False),
    st.floats(0, 1e4, allow_nan=False),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
)
def test_a_cost_is_rounded_up_by_less_than_a_unit(prompt, completion, prompts, completions):
    exact = (Fraction(str(prompt)) * prompts + Fraction(str(completion)) * completions) / 10**6
    amount = cost(Price(prompt, completion), Tokens(prompts, completions))
    assert 0 <= Fraction(amount, DOLLAR) - exact < Fraction(1, DOLLAR)


def test_trained_tokens_have_a_price_of_their_own():
    assert cost(Price(1.0, 2.0, 3.0), Tokens(trained=10**6)) == 3 * DOLLAR
    with pytest.raises(InputError, match="the price of this model has no train"):
        cost(Price(1.0, 2.0), Tokens(trained=1))


@pytest.mark.parametrize(
    ("amount", "text", "up"),
    [
        (0, "$0.00", "$0.00"),
        (1, "$0.00000000000100", "$0.00000000000100"),
        (12_345_600_000, "$0.0123", "$0.0124"),
        (DOLLAR * 5 // 2, "$2.50", "$2.50"),
        (999_999 * 10**6, "$1.000", "$1.000"),
        (1_234_567 * DOLLAR + 1, "$1,234,567.00", "$1,234,567.01"),
    ],
)
def test_dollars_are_shown_in_three_digits_and_a_bound_is_rounded_up(amount, text, up):
    assert (shown(amount), shown(amount, up=True)) == (text, up)


def request(content="hello", **options):
    return ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": content}], **options})


TEXTS = st.text(max_size=50) | st.sampled_from(
    ["🦊" * 20, "\x00\x1f", '"\\' * 10, "élan", "\ud83e".encode("utf-8", "replace").decode()]
)


@given(TEXTS, st.integers(1, 5), st.integers(1, 100))
def test_a_prompt_has_no_more_tokens_than_bytes_and_a_completion_no_more_than_max_tokens(text, n, longest):
    most = bound(request(text, n=n, max_tokens=longest))
    assert most.prompt >= len(text.encode()) + 1024
    assert most.completion == n * longest
    assert bound(request(text, n=n, max_tokens=1, max_completion_tokens=longest)) == most


def test_tools_and_earlier_calls_are_part_of_a_prompt():
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "title": "x" * 500}}}
    assert bound(request(max_tokens=1, tools=[tool])).prompt > bound(request(max_tokens=1)).prompt + 500
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "y" * 300}}
    calling = {"role": "assistant", "content": None, "tool_calls": [call]}
    messages = [{"role": "user", "content": "hello"}, calling, {"role": "tool", "tool_call_id": "1", "content": "z"}]
    longer = ChatRequest.model_validate({"model": "m", "messages": messages, "max_tokens": 1})
    assert bound(longer).prompt > bound(request(max_tokens=1)).prompt + 300


def test_a_completion_or_a_picture_without_a_bound_has_no_price():
    with pytest.raises(InputError, match="without max_tokens the price of a completion has no bound"):
        bound(request())
    picture = [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]
    with pytest.raises(InputError, match="with parts other than text has no bound"):
        bound(request(picture, max_tokens=1))
    assert bound(request([{"type": "text", "text": "hello"}], max_tokens=1)).completion == 1


MOST = Tokens(1000, 500)


def completion(usage, content="Paris", tokens=0):
    logprobs = {"content": [{"token": "a", "logprob": -1.0, "top_logprobs": []}] * tokens} if tokens else None
    message = {"role": "assistant", "content": content}
    choices = [{"index": 0, "finish_reason": "stop", "message": message, "logprobs": logprobs}]
    body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": choices}
    return ChatCompletion.model_validate({**body, **({"usage": usage} if usage else {})})


@pytest.mark.parametrize(
    ("usage", "tokens", "counted"),
    [
        ((10, 5, 15), 0, Tokens(10, 5)),
        (None, 0, MOST),
        ((0, 0, 0), 0, MOST),
        ((10, 0, 10), 0, Tokens(10, 500)),
        ((10, 0, 10), 4, Tokens(10, 4)),
        ((0, 5, 5), 0, Tokens(1000, 5)),
        ((10, 5, 95), 0, Tokens(10, 85)),
        ((10, 5, 0), 0, Tokens(10, 5)),
        ((10, 5, 15), 9, Tokens(10, 9)),
    ],
)
def test_what_a_service_does_not_count_costs_as_much_as_it_could(usage, tokens, counted):
    names = "prompt_tokens", "completion_tokens", "total_tokens"
    assert count_billed(completion(usage and dict(zip(names, usage, strict=True)), tokens=tokens), MOST) == counted


def test_an_empty_completion_may_have_no_tokens():
    usage = {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
    assert count_billed(completion(usage, content=""), MOST) == Tokens(3, 0)


OPERATIONS = st.lists(st.tuples(st.integers(0, 30), st.floats(0, 1)) | st.none(), max_size=60)
"""Requests by their worst case and the part of it that they take, and ends of the oldest one under way."""


@given(st.integers(0, 100), OPERATIONS)
def test_no_order_of_requests_and_answers_exceeds_a_budget(limit, operations):
    budget, waiting, spent = Budget(limit), [], 0
    for operation in operations:
        if operation is None and waiting:
            most, actual = waiting.pop(0)
            budget.pay(most, actual)
            spent += actual
        elif operation is not None:
            most = operation[0] * DOLLAR
            fits = spent + sum(held for held, _ in waiting) + most <= limit * DOLLAR
            assert budget.hold(most) == fits
            if fits:
                waiting.append((most, math.floor(most * operation[1])))
        assert (budget.spent, budget.held) == (spent, sum(held for held, _ in waiting))
        assert budget.spent + budget.held + budget.left == budget.limit
        assert budget.left >= 0


@pytest.mark.parametrize("dollars", [-1, math.nan, math.inf, "2.50", True, None, 100_000.01])
def test_a_budget_is_a_number_of_dollars(dollars):
    with pytest.raises(InputError, match="a budget is a number of dollars from 0 to 100,000, not"):
        Budget(dollars)
