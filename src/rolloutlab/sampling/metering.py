"""Metering of paid requests: none is sent that could exceed a budget, and the lab records what they cost."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from rolloutlab.api.budget import Budget
from rolloutlab.api.dialect import dialect_of
from rolloutlab.api.http.client import Tries
from rolloutlab.api.prices import DOLLAR, Amount, Tokens, amount_of, bound, cost, count_billed, price_of, shown
from rolloutlab.api.training import never_arrived
from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest
from rolloutlab.errors import BudgetError, InputError, LabError, RolloutlabError
from rolloutlab.objective.preflight import count
from rolloutlab.settings import Price, Settings, engine_plugin
from rolloutlab.settings.values import same_service
from rolloutlab.store.models import StoredCollection
from rolloutlab.store.spending import JUDGING, Account, Spending

AHEAD = 16
"""The number of requests that money is set aside for together, so that not each of them waits for the disk."""

Send = Callable[..., Coroutine[Any, Any, ChatCompletion]]
"""A function that sends a request. If it gets an argument, that is a `Tries`, which it calls about each try."""


class Terms(NamedTuple):
    """What the present service charges.

    limit: what the lab may spend at the service in all; None for no limit.
    file: the settings file, for hints.
    named: returns the service's own name of a model. The settings may list a price under it.
    profile: the section of the settings that has the budget, for hints.
    engine: returns the name of the service's engine, if that is known.
    """

    service: str
    prices: tuple[Mapping[str, Price], ...]
    limit: Amount | None
    file: str
    named: Callable[[str], str] = str
    profile: str = "the profile"
    engine: Callable[[], str | None] = lambda: None

    def price(self, model: str) -> Price | None:
        """Return the price of a model's tokens; None if the settings have none."""
        priced = (price_of(model, prices) or price_of(self.named(model), prices) for prices in self.prices)
        return next(filter(None, priced), None)


def terms_of(settings: Settings, service: str, engine: Callable[[], str | None]) -> Terms:
    """Read the terms of a service from the settings. service: its name in the lab's records. engine: as of `Terms`."""
    address = settings.service
    own, limit = (address.prices, address.budget) if address else ({}, None)
    where = str(settings.file) if settings.file else "the settings file"
    named = partial(dialect_of(address).chat_name, address) if address else str
    service, prices = same_service(service), (own, settings.prices)
    there = (name for name, each in settings.profiles.items() if each.budget and same_service(each.url) == service)
    profile = next((f"[profiles.{name}]" for name in there), "the profile")
    return Terms(service, prices, None if limit is None else amount_of(limit), where, named, profile, engine)


@dataclass
class _Entry:
    """What a model costs in this cell.

    number: the id of the lab's record; None until there is one.
    aside: the amount in the lab's record: what was spent, and what is set aside for requests to come.
    spent: the amount that answered requests have cost.
    held: the amount that requests under way may cost.
    bounded: the number of requests that count as the most they could cost.
    uncounted: the number of requests whose tokens are not known.
    """

    account: Account
    price: Price | None
    number: int | None = None
    aside: Amount = 0
    spent: Amount = 0
    held: Amount = 0
    bounded: int = 0
    uncounted: int = 0
    tokens: Tokens = field(default_factory=Tokens)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def left(self) -> Amount:
        """The amount that is set aside and not held."""
        return self.aside - self.spent - self.held


class Meter:
    """Meters the requests of one cell to a service.

    budget: dollars that this cell may cost, or a `Budget` that it shares with others. purpose: the purpose that the
    lab's records get, `SAMPLING` or `JUDGING`.
    """

    def __init__(
        self, terms: Terms, spending: Callable[[], Spending], purpose: str, budget: Budget | float | None
    ) -> None:
        self._terms, self._spending, self._purpose = terms, spending, purpose
        self._budget = budget if isinstance(budget, Budget | None) else Budget(budget)
        self._entries: dict[str, _Entry] = {}
        self._under_way = 0
        self._wrong_bound = self._unrecorded = ""
        self._over_limit = False
        self._attempt, self._freed = asyncio.Lock(), asyncio.Event()

    @property
    def limited(self) -> bool:
        """Whether there is a budget, of the cell or of the service."""
        return self._budget is not None or self._terms.limit is not None

    def check(self, model: str, *, max_tokens: int | None, hint: str = "--max-tokens 512") -> None:
        """Raise InputError if there is a budget, but no price of the model or no bound of its completions."""
        if self.limited:
            self.check_engine()
            self._known_price(model)
            if max_tokens is None:
                message = "a budget needs the most tokens of a completion: without it, no price has a bound"
                raise InputError(message, hint=hint)

    def check_engine(self) -> None:
        """Raise InputError if there is a budget, and the engine charges for more than the service counts."""
        engine = self._terms.engine() if self.limited else None
        if engine and (why := getattr(engine_plugin(engine), "UNMETERED", None)):
            raise InputError(why, hint=self._hint_without_budget("the cell again"))

    async def complete(self, request: ChatRequest, send: Send) -> ChatCompletion:
        """Send a request once its worst case fits the budgets. Until then, wait for requests under way to free money.

        With a budget, a request without an answer, or whose answer reports no usage, counts as its worst case.

        Raises:
            BudgetError: the request does not fit, and none is under way.
            InputError: the model has no price, or the request no bound.
            Other errors are those of `send`.
        """
        price = self._known_price(request.model) if self.limited else self._terms.price(request.model)
        entry = self._entry(request.model, price)
        if not self.limited:
            completion = await send()
            usage = completion.usage
            if usage is None:
                entry.uncounted += 1
            else:
                self._count(entry, Tokens(usage.prompt_tokens, usage.completion_tokens))
            return completion
        tries = _MeteredTries(self, entry, bound(request))
        try:
            completion = await send(tries)
            tries.answered(completion)
            return completion
        finally:
            tries.close()

    def check_training(self, model: str) -> None:
        """Raise InputError if there is a budget, and no price to train the model."""
        price = self._terms.price(model)
        self.check_engine()
        if self.limited and (price is None or price.train is None):
            raise self._no_price_error(model, "prompt, completion and train")

    @contextmanager
    def job(self, model: str, tokens: int, say: Callable[[str], None]) -> Iterator[None]:
        """Pay for a training job that is submitted in the block. If the service certainly never got it, pay nothing.

        say: called with lines on the cost.

        Raises:
            BudgetError: the job costs more than is left.
        """
        price = self._terms.price(model)
        if price is None or price.train is None:
            yield
            return
        entry, paid = self._entry(model, price), cost(price, Tokens(trained=tokens))
        if self._lacks(entry, paid):
            self._set_aside(entry, paid)
        if not self._try_hold(entry, paid):
            self.close()
            error = self._exceeded_error(f"training on {count(tokens, 'token')} costs {shown(paid, up=True)}")
            raise BudgetError(f"{error.message}; no job was submitted", hint=self.resume_hint(None, "less data"))
        charged = True
        try:
            yield
        except RolloutlabError as error:
            charged = not never_arrived(error)
            raise
        finally:
            self._pay(entry, paid, paid if charged else 0, Tokens(trained=tokens if charged else 0))
            self.close()
            for line in self.lines():
                say(line)

    def check_bound(self, tokens: Tokens, most: Tokens) -> None:
        """Compare the tokens of a request with its bound. If they are more, no further request is sent."""
        if tokens.prompt > most.prompt or tokens.completion > most.completion:
            counted = f"{tokens.prompt:,} + {tokens.completion:,} tokens of a request"
            bounded = f"{most.prompt:,} + {most.completion:,}"
            self._wrong_bound = f"the service counted {counted} of at most {bounded}: here no budget can hold"

    def record(self, collection: StoredCollection | None = None) -> None:
        """Record what was spent so far, in case this process is killed. What is set aside stays set aside."""
        with suppress(LabError):  # `close` tries again, and keeps the error for `lines`
            for entry in list(self._entries.values()):
                self._record(entry, collection, goes_on=True)

    def close(self, collection: StoredCollection | None = None) -> None:
        """Record what was spent, and free the rest of what was set aside.

        collection: the collection that the money was spent on.
        """
        try:
            for entry in self._entries.values():
                self._record(entry, collection)
        except LabError as error:  # what is set aside stays: it counts as spent
            self._unrecorded = f"the lab has no record of this: {error.message}"

    def _record(self, entry: _Entry, collection: StoredCollection | None, *, goes_on: bool = False) -> None:
        with entry.lock:  # a thread may still set money aside for a request that was cancelled
            if entry.number is None and entry.tokens != Tokens() and (entry.price or self._purpose == JUDGING):
                entry.number, _ = self._spending().set_aside(entry.account, None, 0, 0)
            if entry.number is not None:
                amount = max(entry.aside, entry.spent) if goes_on else entry.spent
                self._spending().settle(entry.number, amount, entry.tokens, collection)

    def lines(self) -> list[str]:
        """Describe the cost of the cell: a line for each model that has a price, and one on the service's budget."""
        lines = []
        for model, entry in self._entries.items():
            tokens = entry.tokens
            if entry.price and tokens.trained:
                lines.append(f"cost: {shown(entry.spent)} for {count(tokens.trained, 'trained token')} of {model}")
            elif entry.price and (entry.bounded or entry.uncounted or entry.tokens != Tokens()):
                lines.append(_cost_line(model, entry))
        if lines and self._terms.limit is not None:
            with suppress(LabError):  # that a lab cannot be read must not hide the error which a cell ends in
                spent, limit = self._spending().at(self._terms.service), self._terms.limit
                lines.append(f"spent at {self._terms.service} in all: {shown(spent)} of a budget of {shown(limit)}")
        return [*lines, *filter(None, [self._unrecorded])]

    def resume_hint(self, rest: str | None, smaller: str = "a smaller --max-tokens") -> str:
        """Return what to type after a budget was reached.

        rest: the cell that goes on; None if it is the same cell. smaller: what to type instead of a larger budget.
        """
        if self._wrong_bound:
            return self._hint_without_budget(rest or "the cell again")
        if self._budget is None or self._over_limit:
            return f"a larger budget in {self._terms.file}, then {rest or 'the cell again'}"
        return f"a larger --budget, or {smaller}" if rest is None else self.with_budget(rest)

    def with_budget(self, cell: str) -> str:
        """Add the budget of this cell to a cell, a call or a command line that goes on with its work."""
        if self._budget is None:
            return cell
        dollars = f"{self._budget.limit / DOLLAR:g}"
        if cell.startswith("lab."):
            return f"{cell.removesuffix(')')}, budget={dollars})"
        # options come before the program: in a terminal after dashes, and of a magic in the cell
        end = next((end for end in (" -- ", ", with its cell") if end in cell), "")
        command, end, program = cell.partition(end) if end else (cell, "", "")
        return f"{command} --budget {dollars}{end}{program}"

    def _hint_without_budget(self, rest: str) -> str:
        """Return what to type if no budget can hold at this service."""
        if self._terms.limit is None:
            return f"{rest}, without a budget"
        first = f"no budget in {self._terms.profile} of {self._terms.file}, then {rest}"
        return first if self._budget is None else f"{first} without --budget"

    def _known_price(self, model: str) -> Price:
        if price := self._terms.price(model):
            return price
        raise self._no_price_error(model, "prompt and completion")

    def _no_price_error(self, model: str, what: str) -> InputError:
        message = f"a budget needs the price of {model}, in dollars per million tokens, and the settings have none"
        return InputError(message, hint=f'[prices."{model}"] with {what}, in {self._terms.file}')

    def _entry(self, model: str, price: Price | None) -> _Entry:
        account = Account(self._terms.service, model, self._purpose, None, self._terms.limit)
        return self._entries.setdefault(model, _Entry(account, price))

    async def _hold(self, entry: _Entry, amount: Amount) -> None:
        """Wait until an amount fits the budgets, and hold it.

        Raise BudgetError if it does not fit and no request is under way that could free money.
        """
        while True:
            async with self._attempt:  # one request at a time sets money aside, which awaits the disk
                self._freed.clear()
                if self._wrong_bound:
                    message = f"{self._wrong_bound}; {self._spent()} is spent"
                    raise BudgetError(message, hint=self.resume_hint(None), holds=False)
                if self._lacks(entry, amount):
                    await asyncio.to_thread(self._set_aside, entry, amount)
                if self._try_hold(entry, amount):
                    return
                if not self._under_way and not self._freed.is_set():
                    raise self._exceeded_error(f"the next request may cost {shown(amount, up=True)}")
            await self._freed.wait()

    def _lacks(self, entry: _Entry, amount: Amount) -> bool:
        """Whether more has to be set aside for an amount, and the budget of the cell allows it."""
        return entry.left < amount and (self._budget is None or amount <= self._budget.left)

    def _set_aside(self, entry: _Entry, amount: Amount) -> None:
        """Set aside in the lab what an amount still needs and, if the budgets allow, money for further requests."""
        with entry.lock:
            ahead = AHEAD * amount if self._budget is None else min(AHEAD * amount, self._budget.left)
            least = amount - entry.left
            aside = self._spending().set_aside(entry.account, entry.number, least, max(least, ahead))
            entry.number, entry.aside = aside[0], entry.aside + aside[1]

    def _try_hold(self, entry: _Entry, amount: Amount) -> bool:
        """Hold an amount of what is set aside, if it fits; return whether it did."""
        if entry.left < amount or (self._budget is not None and not self._budget.hold(amount)):
            return False
        entry.held += amount
        self._under_way += 1
        return True

    def _pay(self, entry: _Entry, held: Amount, spent: Amount, tokens: Tokens) -> None:
        """End a hold. held: the amount that was held. spent: the amount that the request has cost."""
        entry.held -= held
        entry.spent += spent
        entry.tokens = entry.tokens.plus(tokens)
        if self._budget is not None:
            self._budget.pay(held, spent)
        self._under_way -= 1
        self._freed.set()

    def _count(self, entry: _Entry, tokens: Tokens) -> None:
        """Count tokens that nothing was held for."""
        entry.tokens = entry.tokens.plus(tokens)
        entry.spent += cost(entry.price, tokens) if entry.price else 0

    def _spent(self) -> str:
        """Describe what was spent of the budget: of the cell's if it has one, else of the service's."""
        here = self._budget
        return shown(self._spent_there() if here is None else here.spent)

    def _spent_there(self) -> Amount:
        """Return what was spent at the service, without what this cell has set aside."""
        aside = sum(entry.aside - entry.spent for entry in self._entries.values())
        return self._spending().at(self._terms.service) - aside

    def _exceeded_error(self, what: str) -> BudgetError:
        """Make the error for a cost that does not fit. It names the budget that is too small."""
        here, limit = self._budget, self._terms.limit
        if here is not None and (limit is None or here.left <= limit - self._spending().at(self._terms.service)):
            return BudgetError(f"{what}, and {shown(here.spent)} of a budget of {shown(here.limit)} is spent")
        self._over_limit = True
        where = f"of a budget of {shown(limit or 0)} at {self._terms.service} is spent"
        return BudgetError(
            f"{what}, and {shown(self._spent_there())} {where}", hint=f"a larger budget in {self._terms.file}"
        )


def _cost_line(model: str, entry: _Entry) -> str:
    """Describe what sampling a model has cost."""
    of = f"for {entry.tokens.prompt:,} + {entry.tokens.completion:,} tokens of {model}"
    if entry.uncounted:
        unknown = f"{count(entry.uncounted, 'request')} without usage, whose cost is not known"
        return f"cost: {shown(entry.spent)} {of}, and {unknown}"
    if entry.bounded:
        worst = f"{count(entry.bounded, 'request')} without usage or a response count as the most they could cost"
        return f"cost: at most {shown(entry.spent, up=True)} {of}: {worst}"
    return f"cost: {shown(entry.spent)} {of}"


class _MeteredTries(Tries):
    """The tries of one request. Each try holds the worst case, and pays it if the service may have done the work."""

    def __init__(self, meter: Meter, entry: _Entry, most: Tokens) -> None:
        assert entry.price, "a meter with a budget knows the price"
        self._meter, self._entry, self._most, self._price = meter, entry, most, entry.price
        self._amount = cost(entry.price, most)
        self._under_way = False

    async def begin(self) -> None:
        """Begin a try: wait until its worst case fits."""
        self.close()
        await self._meter._hold(self._entry, self._amount)
        self._under_way = True

    def failed(self, *, reached: bool) -> None:
        """End a try without success. reached: whether the service may have done the work."""
        if self._under_way:
            self._entry.bounded += reached
            self._end(self._most if reached else Tokens())

    def answered(self, completion: ChatCompletion) -> None:
        """End a try with a completion: pay what it cost."""
        if self._under_way:
            self._end(tokens := count_billed(completion, self._most))
            usage = completion.usage
            known = (
                usage and usage.prompt_tokens and (usage.completion_tokens or tokens.completion < self._most.completion)
            )
            self._entry.bounded += not known
            self._meter.check_bound(tokens, self._most)

    def close(self) -> None:
        """End the last try. If it has no outcome yet, the service may have done the work."""
        self.failed(reached=True)

    def _end(self, tokens: Tokens) -> None:
        self._under_way = False
        self._meter._pay(self._entry, self._amount, cost(self._price, tokens), tokens)
