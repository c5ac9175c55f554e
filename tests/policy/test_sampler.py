"""Everyone who asks the sampler gets their own answer, under their own adapter, whoever else asks, leaves or fails."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rolloutlab.errors import PolicyError
from rolloutlab.policy.decode import Completion, CompletionRequest
from rolloutlab.policy.model import Adapter, Policy, load_policy, read_adapter, write_adapter
from rolloutlab.policy.sampler import Sampler
from tests.decoding import decode

SOON = 10
"""Seconds after which a test gives up on what should come at once."""

ENDLESS = 1_000_000
PROMPTS = [(0, 20, 30), (0, 40), (0, 7, 8, 9, 10, 11, 12)]


@pytest.fixture(scope="module")
def policy(tiny_policy) -> Policy:
    """A policy that never ends a turn by itself, so that every completion has the length that was asked for."""
    policy = load_policy(str(tiny_policy))
    policy.base.to("cpu", torch.float32)  # also where there is an accelerator
    for weight in policy.base.parameters():
        if weight.dim() > 1:
            weight.data.mul_(12)  # an untrained model says nearly the same whatever it reads
    return replace(policy, end_ids=frozenset())


@pytest.fixture(scope="module")
def adapters(policy) -> dict[str, Adapter]:
    """Adapters that say different things, under their keys."""
    generator = torch.Generator().manual_seed(0)
    initial = read_adapter(policy.lora_copy())
    return {
        key: {name: t + torch.randn(t.shape, generator=generator) for name, t in initial.items()} for key in ("a", "b")
    }


@pytest.fixture
def start(policy) -> Iterator[Callable[..., Sampler]]:
    """Starts samplers, and closes them when the test is over."""
    started: list[Sampler] = []

    def make(watch: Callable[[Tensor], None] | None = None, **settings: Any) -> Sampler:
        started.append(Sampler(watched(policy, watch) if watch else policy, **settings))
        return started[-1]

    yield make
    for sampler in started:
        sampler.close()


def watched(policy: Policy, watch: Callable[[Tensor], None], name: str = "input_ids") -> Policy:
    """The policy, whose speakers show `watch` the ids, or another input, of every forward pass before it runs."""

    class Watched(Policy):
        def with_adapter(self, *adapter: Any) -> Any:
            model = super().with_adapter(*adapter)
            model.register_forward_pre_hook(lambda _, __, inputs: watch(inputs[name]), with_kwargs=True)
            return model

    return Watched(**vars(policy))


class Gate:
    """Notes the ids of every forward pass, and holds the first until it is opened."""

    def __init__(self) -> None:
        self.seen: list[list[list[int]]] = []
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, ids_BT: Tensor) -> None:
        self.seen.append(ids_BT.tolist())
        self.reached.set()
        assert self.opened.wait(SOON)

    def prompts(self) -> set[tuple[int, ...]]:
        """Those of PROMPTS that were read."""
        ends = {row[-1] for ids in self.seen if len(ids[0]) > 1 for row in ids}
        return {prompt for prompt in PROMPTS if prompt[-1] in ends}


def requests(n: int = 2, **overrides: Any) -> list[CompletionRequest]:
    return [
        CompletionRequest(**{"prompt": PROMPTS[0], "max_tokens": 6, "seed": 1, "index": i} | overrides)
        for i in range(n)
    ]


def endless(**overrides: Any) -> list[CompletionRequest]:
    return requests(1, max_tokens=ENDLESS, **overrides)


def expected(policy: Policy, adapter: Adapter, wanted: list[CompletionRequest]) -> list[list[int]]:
    model = policy.lora_copy()
    write_adapter(model, adapter)
    return [row.tokens for row in decode(model, wanted, policy.end_ids)]


def tokens(future: "Future[list[Completion]]") -> list[list[int]]:
    return [row.tokens for row in future.result(SOON)]


def test_an_answer_is_what_decoding_gives(policy, adapters, start):
    rows = start().submit(adapters["a"], requests(3)).result(SOON)
    assert [row.tokens for row in rows] == expected(policy, adapters["a"], requests(3))
    assert {row.finish for row in rows} == {"length"}


def test_completions_come_in_the_order_of_their_index_whichever_ends_first(policy, adapters, start):
    wanted = [replace(request, max_tokens=n) for request, n in zip(requests(4), (9, 1, 12, 3), strict=True)]
    assert tokens(start().submit(adapters["a"], wanted)) == expected(policy, adapters["a"], wanted)


def test_everyone_who_asks_at_the_same_time_gets_their_own_answer(policy, adapters, start):
    sampler = start()
    together = threading.Barrier(8)
    wanted = [requests(1 + i % 3, prompt=PROMPTS[i % 3], seed=i, max_tokens=4 + i) for i in range(8)]

    def client(i: int) -> list[list[list[int]]]:
        together.wait(SOON)
        key = "ab"[i % 2]
        return [tokens(sampler.submit(adapters[key], wanted[i])) for _ in range(2)]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(client, range(8)))
    for i, answer in enumerate(answers):
        assert answer == 2 * [expected(policy, adapters["ab"[i % 2]], wanted[i])]


@pytest.mark.parametrize("max_batch", [1, 3, 10])
def test_more_completions_than_the_batch_holds_wait_their_turn(policy, adapters, start, max_batch):
    gate = Gate()
    gate.opened.set()
    sampler = start(gate, max_batch=max_batch)
    futures = [sampler.submit(adapters["a"], requests(n, seed=n)) for n in (7, 1, 4)]
    for n, future in zip((7, 1, 4), futures, strict=True):
        assert tokens(future) == expected(policy, adapters["a"], requests(n, seed=n))
    assert max(len(ids) for ids in gate.seen) <= max_batch


def test_a_request_joins_the_running_batch_under_the_same_adapter(policy, adapters, start):
    gate = Gate()
    sampler = start(gate)
    running = sampler.submit(adapters["a"], endless())
    assert gate.reached.wait(SOON)
    joining = sampler.submit(adapters["a"], requests(2, seed=2))
    gate.opened.set()
    assert tokens(joining) == expected(policy, adapters["a"], requests(2, seed=2))
    assert not running.done()
    assert max(len(ids) for ids in gate.seen) == 3


def test_where_lanes_are_few_requests_go_first_come_first_across_adapters(policy, adapters, start):
    gate = Gate()
    sampler = start(gate, max_lanes=1)
    order: list[str] = []
    futures = {}
    for name, key, length in [("first", "a", 30), ("second", "b", 20), ("third", "a", 1)]:
        futures[name] = sampler.submit(adapters[key], requests(1, max_tokens=length))
        futures[name].add_done_callback(lambda _, name=name: order.append(name))
    assert gate.reached.wait(SOON)
    gate.opened.set()
    futures["third"].result(SOON)
    assert order[:2] == ["first", "second"]


def test_a_busy_checkpoint_does_not_keep_another_waiting(policy, adapters, start):
    sampler = start()
    busy = sampler.submit(adapters["a"], endless())
    assert tokens(sampler.submit(adapters["b"], requests())) == expected(policy, adapters["b"], requests())
    assert not busy.done()


def test_an_error_under_one_adapter_leaves_the_others_alone(policy, adapters, start):
    sampler = start()
    busy = sampler.submit(adapters["a"], endless())
    assert sampler.submit(adapters["b"], requests(prompt=(100_000,))).exception(SOON)
    assert tokens(sampler.submit(adapters["b"], requests())) == expected(policy, adapters["b"], requests())
    assert not busy.done()


def test_a_newcomer_that_cannot_be_read_leaves_those_who_are_under_way_alone(policy, adapters, start):
    gate = Gate()
    sampler = start(gate)
    running = sampler.submit(adapters["a"], requests(2, max_tokens=20))
    assert gate.reached.wait(SOON)
    newcomer = sampler.submit(adapters["a"], requests(1, prompt=(100_000,)))
    gate.opened.set()
    assert newcomer.exception(SOON)
    assert tokens(running) == expected(policy, adapters["a"], requests(2, max_tokens=20))


def test_many_long_prompts_are_read_a_few_at_a_time(policy, adapters, start):
    gate = Gate()
    gate.opened.set()
    sampler = start(gate, prefill_tokens=20)
    blocker = sampler.submit(adapters["a"], endless())
    assert gate.reached.wait(SOON)
    wanted = [requests(1, prompt=(*range(5, 12), i)) for i in range(20, 30)]
    futures = [sampler.submit(adapters["a"], each) for each in wanted]
    for each, future in zip(wanted, futures, strict=True):
        assert tokens(future) == expected(policy, adapters["a"], each)
    assert max(len(ids) * len(ids[0]) for ids in gate.seen if len(ids[0]) > 1) <= 20
    assert not blocker.done()


def test_a_request_for_nothing_is_answered_at_once(adapters, start):
    assert start().submit(adapters["a"], []).result(SOON) == []


def test_what_a_client_watches_for_ends_its_completion_alone(policy, adapters, start):
    seen: list[int] = []

    def third(row: Completion) -> str | None:
        seen.append(row.tokens[-1])
        return "stop" if len(row.tokens) == 3 else None

    sampler = start()
    watch = lambda request: third if request.index == 0 else None  # noqa: E731
    rows = sampler.submit(adapters["a"], requests(2), watch).result(SOON)
    assert [len(row.tokens) for row in rows] == [3, 6]
    assert (rows[0].finish, rows[0].tokens) == ("stop", seen)


def test_adapters_in_turn_each_give_their_own_results(policy, adapters, start):
    sampler = start()
    keys = ["a", "b", "a", "a", "b"]
    futures = [sampler.submit(adapters[key], requests()) for key in keys]
    answers = {key: expected(policy, adapters[key], requests()) for key in adapters}
    assert answers["a"] != answers["b"]
    assert [tokens(future) for future in futures] == [answers[key] for key in keys]


def test_cancelling_a_running_request_stops_its_decoding(policy, adapters, start):
    gate = Gate()
    sampler = start(gate, max_lanes=1)
    gone = sampler.submit(adapters["a"], endless())
    assert gate.reached.wait(SOON)
    gate.opened.set()
    assert gone.cancel()
    # another adapter comes on only when nothing runs under this one
    assert tokens(sampler.submit(adapters["b"], requests())) == expected(policy, adapters["b"], requests())


def test_cancelling_one_request_leaves_the_others_of_its_batch_alone(policy, adapters, start):
    gate = Gate()
    sampler = start(gate)
    gone = sampler.submit(adapters["a"], endless())
    stays = sampler.submit(adapters["a"], requests(2, max_tokens=20))
    assert gate.reached.wait(SOON)
    gone.cancel()
    gate.opened.set()
    assert tokens(stays) == expected(policy, adapters["a"], requests(2, max_tokens=20))
    assert gone.cancelled()


def test_a_request_cancelled_before_its_turn_is_never_decoded(policy, adapters, start):
    gate = Gate()
    sampler = start(gate)
    first = sampler.submit(adapters["a"], requests(prompt=PROMPTS[0]))
    assert gate.reached.wait(SOON)
    gone = [sampler.submit(adapters[key], endless(prompt=PROMPTS[1])) for key in "ab"]
    last = sampler.submit(adapters["a"], requests(prompt=PROMPTS[2]))
    for future in gone:
        future.cancel()
    gate.opened.set()
    assert tokens(first) == expected(policy, adapters["a"], requests(prompt=PROMPTS[0]))
    assert tokens(last) == expected(policy, adapters["a"], requests(prompt=PROMPTS[2]))
    assert gate.prompts() == {PROMPTS[0], PROMPTS[2]}


def test_an_error_reaches_everyone_whose_batch_it_was_and_the_sampler_lives_on(policy, adapters, start):
    gate, wrong = Gate(), RuntimeError("out of memory")

    def fail_with_three_rows(ids_BT: Tensor) -> None:
        gate(ids_BT)
        if len(ids_BT) == 3:
            raise wrong

    sampler = start(fail_with_three_rows, max_batch=3)
    running = sampler.submit(adapters["a"], endless())
    assert gate.reached.wait(SOON)
    partly_waiting = sampler.submit(adapters["a"], requests(4, max_tokens=ENDLESS))
    others = {key: sampler.submit(adapters[key], requests()) for key in "ba"}
    gate.opened.set()
    assert running.exception(SOON) is wrong
    assert partly_waiting.exception(SOON) is wrong
    for key, future in others.items():
        assert tokens(future) == expected(policy, adapters[key], requests())


def test_a_prompt_that_the_model_cannot_read_is_an_error_of_its_own_request(policy, adapters, start):
    sampler = start()
    assert sampler.submit(adapters["a"], requests(prompt=(100_000,))).exception(SOON)
    assert tokens(sampler.submit(adapters["a"], requests())) == expected(policy, adapters["a"], requests())


def test_an_adapter_that_does_not_fit_is_an_error_of_its_own_request(policy, adapters, start):
    sampler = start()
    misfit = {name: tensor[:-1] for name, tensor in adapters["b"].items()}
    wrong = sampler.submit(misfit, requests())
    right = sampler.submit(adapters["a"], requests())
    assert wrong.exception(SOON)
    assert tokens(right) == expected(policy, adapters["a"], requests())


def test_closing_cancels_what_was_not_answered_and_ends_the_thread(adapters, start):
    gate = Gate()
    before = threading.active_count()
    sampler = start(gate)
    unanswered = [sampler.submit(adapters[key], endless()) for key in "aab"]
    assert gate.reached.wait(SOON)
    gate.opened.set()
    sampler.close()
    assert all(future.cancelled() for future in unanswered)
    assert threading.active_count() == before


def test_what_was_answered_before_the_close_stays_answered(adapters, start):
    sampler = start()
    future = sampler.submit(adapters["a"], requests())
    answer = future.result(SOON)
    sampler.close()
    assert future.result() is answer


def test_nobody_waits_for_a_closed_sampler(adapters, start):
    sampler = start()
    sampler.close()
    with pytest.raises((CancelledError, PolicyError)):
        sampler.submit(adapters["a"], requests()).result(timeout=1)


def test_a_request_whose_watch_fails_fails_alone(start, adapters):
    def broken(_):
        raise ZeroDivisionError

    sampler = start()
    other = sampler.submit(adapters["a"], [CompletionRequest(PROMPTS[0], max_tokens=20, seed=1)])
    failed = sampler.submit(
        adapters["a"],
        [CompletionRequest(PROMPTS[1], max_tokens=ENDLESS, index=i) for i in (0, 1)],
        lambda _: broken,
    )
    with pytest.raises(ZeroDivisionError):
        failed.result(SOON)
    assert len(other.result(SOON)[0].tokens) == 20


def test_a_short_chat_is_answered_while_a_large_request_has_more_completions_than_the_batch_holds(
    policy, adapters, start
):
    gate = Gate()
    sampler = start(gate, max_batch=8)
    large = sampler.submit(adapters["a"], requests(100, max_tokens=ENDLESS))
    assert gate.reached.wait(SOON)
    gate.opened.set()
    for seed in range(3):
        wanted = requests(2, prompt=PROMPTS[1], seed=seed)
        assert tokens(sampler.submit(adapters["a"], wanted)) == expected(policy, adapters["a"], wanted)
    assert not large.done()


def test_several_large_requests_share_a_batch_and_all_end(policy, adapters, start):
    sampler = start(max_batch=16)
    wanted = [requests(40, seed=seed, max_tokens=3) for seed in (1, 2)]
    futures = [sampler.submit(adapters["a"], each) for each in wanted]
    for each, future in zip(wanted, futures, strict=True):
        assert tokens(future) == expected(policy, adapters["a"], each)


def test_requests_take_turns_at_the_room_that_is_free(adapters, start):
    gate = Gate()
    sampler = start(gate, max_batch=1)
    order: list[str] = []
    blocker = sampler.submit(adapters["a"], requests(1))
    assert gate.reached.wait(SOON)
    futures = {}
    for name, n in (("many", 20), ("one", 1)):
        futures[name] = sampler.submit(adapters["a"], requests(n, seed=n, max_tokens=1))
        futures[name].add_done_callback(lambda _, name=name: order.append(name))
    gate.opened.set()
    assert len(futures["many"].result(SOON)) == 20
    assert order == ["one", "many"]
    assert blocker.done()


def test_equal_prompts_of_different_requests_are_read_once_whenever_they_come(policy, adapters, start):
    gate = Gate()
    sampler = start(gate)
    running = sampler.submit(adapters["a"], endless())
    assert gate.reached.wait(SOON)
    gate.opened.set()
    for seed in range(4):  # each joins after the one before it has ended
        wanted = requests(2, seed=seed)
        assert tokens(sampler.submit(adapters["a"], wanted)) == expected(policy, adapters["a"], wanted)
    assert sum(len(ids) for ids in gate.seen if len(ids[0]) > 1) == 1
    assert not running.done()


def test_a_prompt_is_read_again_under_another_adapter(policy, adapters, start):
    sampler = start(max_lanes=1)
    for key in "aba":
        assert tokens(sampler.submit(adapters[key], requests())) == expected(policy, adapters[key], requests())


@pytest.mark.parametrize("n", [6, 40])
def test_the_cache_stays_within_its_limit_and_completions_that_had_to_leave_go_on(policy, adapters, n):
    cells: list[int] = []
    sampler = Sampler(watched(policy, lambda mask_BT: cells.append(mask_BT.numel()), "attention_mask"), max_cached=60)
    wanted = requests(n, max_tokens=15)
    try:
        assert tokens(sampler.submit(adapters["a"], wanted)) == expected(policy, adapters["a"], wanted)
    finally:
        sampler.close()
    assert max(cells) <= 60


def test_a_completion_that_is_longer_than_the_limit_of_the_cache_is_sampled_alone(policy, adapters, start):
    sampler = start(max_cached=10)
    wanted = [requests(1, seed=seed, max_tokens=15) for seed in range(3)]
    futures = [sampler.submit(adapters["a"], each) for each in wanted]
    for each, future in zip(wanted, futures, strict=True):
        assert tokens(future) == expected(policy, adapters["a"], each)
