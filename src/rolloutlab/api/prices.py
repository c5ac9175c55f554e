"""Prices of tokens: which one a model has, what tokens cost by it, and how many tokens a request takes at most."""

import re
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest, Message
from rolloutlab.errors import InputError
from rolloutlab.settings import Price

Amount = int
"""Money in units of 1e-12 dollars: sums are exact, and 64 bits of SQLite hold 9 million dollars."""
DOLLAR: Amount = 10**12
TEMPLATE_TOKENS = 1024
"""Tokens that a chat template may add of its own to a prompt: a default system message, instructions for tools."""
_STEP = re.compile(r"(@[^/@]*|:step\d+)$")
_SIGNIFICANT = 3
_GRADERS = '"sampling_params": {"max_completion_tokens": 512} of a grader'
"""The hint for a request without `max_tokens`: only requests of graders come here unchecked."""


class Tokens(NamedTuple):
    """Counts of tokens that are count_billed. trained: of a training job."""

    prompt: int = 0
    completion: int = 0
    trained: int = 0

    def plus(self, other: "Tokens") -> "Tokens":
        """Add other counts to these."""
        return Tokens(self.prompt + other.prompt, self.completion + other.completion, self.trained + other.trained)


def price_of(model: str, *tables: Mapping[str, Price]) -> Price | None:
    """Look up the price of a model in each table: by its full name, then by its name without the step.

    tables: prices by model name. The first table with a match wins, so pass the prices of the present service first.
    """
    for prices in tables:
        if price := prices.get(model) or prices.get(_STEP.sub("", model)):
            return price
    return None


def cost(price: Price, tokens: Tokens) -> Amount:
    """Compute what tokens cost, rounded up. InputError if some tokens are trained, and the price has no `train`."""
    if tokens.trained and price.train is None:
        raise InputError("the price of this model has no train", hint="train = ... in dollars per million tokens")
    each = (price.prompt, tokens.prompt), (price.completion, tokens.completion), (price.train or 0.0, tokens.trained)
    return ceil(sum(Fraction(str(dollars)) * number * (DOLLAR // 10**6) for dollars, number in each))


def amount_of(dollars: float) -> Amount:
    """Convert dollars, such as a budget, to an amount."""
    return int(Fraction(str(dollars)) * DOLLAR)


def shown(amount: Amount, *, up: bool = False) -> str:
    """Write an amount as `$0.0123` or `$12.34`: three significant digits, at least cents. up: round up, for a bound."""
    exact = Decimal(amount) / DOLLAR
    places = max(2, _SIGNIFICANT - 1 - exact.adjusted()) if exact else 2
    rounded = exact.quantize(Decimal(1).scaleb(-places), ROUND_CEILING if up else ROUND_HALF_EVEN)
    return f"${rounded:,f}"


def prompt_bound(messages: Sequence[Message], others: int = 0) -> int:
    """Bound the tokens of a prompt from above: a token is at least one byte of its text. others: bytes of the tools.

    The JSON of a message has more bytes than its text and the special tokens of a chat template together.

    Raises:
        InputError: a part is no text. Bytes do not bound the tokens of images and the like.
    """
    for message in messages:
        parts = message.content if isinstance(message.content, list) else []
        if getattr(message, "audio", None) or any(part.type not in {"text", "refusal"} for part in parts):
            raise InputError("the price of a prompt with parts other than text has no bound", hint="leave out --budget")
    return TEMPLATE_TOKENS + others + sum(len(message.to_json().encode()) for message in messages)


def bound(request: ChatRequest) -> Tokens:
    """Bound the tokens that can be count_billed for a request that is sent once.

    Raises:
        InputError: the request has no max_tokens, or as `prompt_bound`.
    """
    longest = request.max_completion_tokens or request.max_tokens
    if longest is None:
        raise InputError("without max_tokens the price of a completion has no bound", hint=_GRADERS)
    tools = sum(len(tool.to_json().encode()) for tool in request.tools or ())
    return Tokens(prompt_bound(request.messages, tools), request.n * longest)


def count_billed(completion: ChatCompletion, most: Tokens) -> Tokens:
    """Count the tokens of a completion as its service does.

    `most` is billed where the service reports no usage, or zero completion tokens for a non-empty answer. Some services
    count reasoning in `total_tokens` only; here it counts as completion.
    """
    usage = completion.usage
    if usage is None:
        return most
    sampled = max(usage.completion_tokens, usage.total_tokens - usage.prompt_tokens)
    sampled = max(sampled, sum(len(choice.sampled_tokens()) for choice in completion.choices))
    answers = (choice.message.to_wire() for choice in completion.choices)
    empty = not any(value for answer in answers for name, value in answer.items() if name != "role")
    return Tokens(usage.prompt_tokens or most.prompt, sampled if sampled or empty else most.completion)
