"""What is sampled: repeatable, from the right distribution, with the right logprobs, and no longer than asked."""

from collections import Counter
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rolloutlab.policy.cache_rows import AttentionLayer
from rolloutlab.policy.decode import Completion, CompletionRequest, Decoder, gumbel
from rolloutlab.policy.model import Policy, load_policy, read_adapter
from tests.decoding import decode

NEVER_ENDS: frozenset[int] = frozenset()
PROMPT = (1, 20, 30, 40, 50)
OTHERS = [(1, 7), (1, 8, 9, 10, 11, 12, 13, 14, 15, 16), (2,)]


@pytest.fixture(scope="module")
def policy(tiny_policy) -> Policy:
    policy = load_policy(str(tiny_policy))
    policy.base.to("cpu", torch.float32)  # also where there is an accelerator
    for weight in policy.base.parameters():
        if weight.dim() > 1:
            weight.data.mul_(12)  # an untrained model says nearly the same whatever it reads
    return policy


def request(**overrides: Any) -> CompletionRequest:
    return CompletionRequest(**{"prompt": PROMPT, "max_tokens": 12, "seed": 5} | overrides)


def others() -> list[CompletionRequest]:
    """Neighbours of other lengths and settings."""
    settings = [{"temperature": 0.0}, {"top_p": 0.3}, {"temperature": 2.0}]
    return [
        request(prompt=p, max_tokens=3 + i, index=i, **s) for i, (p, s) in enumerate(zip(OTHERS, settings, strict=True))
    ]


def finish(decoder: Decoder) -> list[Completion]:
    done = []
    while len(decoder):
        done += decoder.step()
    return done


def forward_logits(policy: Policy, ids: tuple[int, ...]) -> Tensor:
    """Logits (T, V) of a plain forward pass over the whole text, without a cache."""
    with torch.inference_mode():
        return policy.base(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


class Constant:
    """A model that gives the same logits whatever it reads, and notes how many positions it was shown."""

    device = torch.device("cpu")

    def __init__(self, logits: list[float]) -> None:
        self.logits_V = torch.tensor(logits)
        self.widths: list[int] = []

    def __call__(self, **inputs: Any) -> SimpleNamespace:
        return self.forward(**inputs)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, past_key_values: Any, **_: Any) -> SimpleNamespace:
        self.widths.append(attention_mask.shape[1])
        states = torch.zeros(len(input_ids), 1, input_ids.shape[1], 1)
        past_key_values.update(states, states, 0)
        return SimpleNamespace(logits=self.logits_V.expand(len(input_ids), 1, -1))


class Renamed(Constant):
    """The same model as transformers 5.24 writes it."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, cache: Any, **others: Any) -> SimpleNamespace:
        assert "past_key_values" not in others
        return super().forward(input_ids, attention_mask, cache)


LOGITS = [0.5, -1.0, 2.0, 0.0, 1.5, -1.5, 1.0, -0.5]
BEST, SECOND, THIRD = 2, 4, 6
PROBABILITIES = torch.tensor(LOGITS).softmax(0)
CRITICAL = {1: 10.83, 7: 24.32, 24: 51.18, 63: 103.44}
"""The value that chi-square exceeds once in 1000 draws, by degrees of freedom."""


def draws(**overrides: Any) -> list[list[int]]:
    """200 completions of 100 tokens from the constant model."""
    requests = [request(index=i, max_tokens=100, **overrides) for i in range(200)]
    return [row.tokens for row in decode(Constant(LOGITS), requests, NEVER_ENDS)]


def chi_square(found: list[Any], expected: dict[Any, float]) -> float:
    """Pearson's statistic of `found` against the probabilities `expected`."""
    counts = Counter(found)
    assert counts.keys() <= expected.keys()
    return sum((counts[k] - len(found) * p) ** 2 / (len(found) * p) for k, p in expected.items())


def flat(rows: list[list[int]]) -> list[int]:
    return [token for row in rows for token in row]


def test_the_same_seed_gives_the_same_tokens_again(policy):
    first, second = (decode(policy.base, [request()], policy.end_ids)[0] for _ in range(2))
    assert (first.tokens, first.logprobs) == (second.tokens, second.logprobs)


def test_neighbours_do_not_change_a_completion(policy):
    [alone] = decode(policy.base, [request()], NEVER_ENDS)
    *_, beside = decode(policy.base, [*others(), request()], NEVER_ENDS)
    assert beside.tokens == alone.tokens
    assert beside.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_the_most_likely_tokens_are_noted_for_those_who_asked(policy):
    row, other = decode(policy.base, [request(top=3), request(index=1)], NEVER_ENDS)
    for i, (token, logprob) in enumerate(zip(row.tokens, row.logprobs, strict=True)):
        logprobs_V = forward_logits(policy, PROMPT + tuple(row.tokens[:i]))[-1].log_softmax(-1)
        values, ids = logprobs_V.topk(3)
        assert [t for t, _ in row.top[i]] == ids.tolist()
        assert [p for _, p in row.top[i]] == pytest.approx(values.tolist(), abs=1e-4)
        assert logprob == pytest.approx(float(logprobs_V[token]), abs=1e-4)
    assert other.top == []


def test_forced_tokens_come_first_with_their_own_logprobs(policy):
    [row] = decode(policy.base, [request(forced=(7, 8, 9))], NEVER_ENDS)
    assert row.tokens[:3] == [7, 8, 9]
    logprobs_V = forward_logits(policy, (*PROMPT, 7, 8))[-1].log_softmax(-1)
    assert row.logprobs[2] == pytest.approx(float(logprobs_V[9]), abs=1e-4)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_joining_a_running_batch_changes_neither_the_newcomer_nor_the_others(policy, steps):
    requests = [*others(), request()]
    alone = {each: decode(policy.base, [each], NEVER_ENDS)[0] for each in requests}
    decoder = Decoder(policy.base, NEVER_ENDS)
    decoder.admit(others())
    done = [row for _ in range(steps) for row in decoder.step()]
    decoder.admit([request()])
    done += finish(decoder)
    assert {row.request for row in done} == set(requests)
    for row in done:
        assert row.tokens == alone[row.request].tokens
        assert row.logprobs == pytest.approx(alone[row.request].logprobs, abs=1e-4)


@pytest.mark.parametrize("seed", range(2))
def test_completions_that_join_leave_and_return_at_random_are_those_sampled_alone(policy, monkeypatch, seed):
    new_empty = Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *sizes, **options: new_empty(*sizes, **options).fill_(torch.nan))
    random, decoder = Random(seed), Decoder(policy.base, NEVER_ENDS)
    lengths, tokens = [1, 2, 5, 5, 40], [1, 3, 12, 12, 60]
    requests = [
        request(
            prompt=tuple(random.choices(range(3, 60), k=random.choice(lengths))),
            max_tokens=random.choice(tokens),
            index=i,
        )
        for i in range(40)
    ]
    waiting, out, done = [Completion(each) for each in requests], [], []
    while waiting or len(decoder):
        joining = [waiting.pop() for _ in range(min(len(waiting), random.choice([0, 0, 1, 3, 12])))]
        if joining or out:
            decoder.resume([*joining, *out])
            out = []
        for _ in range(random.choice([1, 3, 10])):
            done += decoder.step() if len(decoder) else []
        if len(decoder) > 2 and random.random() < 0.3:
            out = decoder.preempt(random.randrange(1, len(decoder)))
    assert len(done) == len(requests)
    for row in done:
        alone = decode(policy.base, [row.request], NEVER_ENDS)[0]
        assert row.tokens == alone.tokens
        assert row.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_the_newest_are_preempted_whichever_left_before_them(policy):
    decoder = Decoder(policy.base, NEVER_ENDS)
    first = [request(index=i, max_tokens=2 if i < 3 else 9) for i in range(6)]
    decoder.admit(first)
    decoder.step()
    assert {row.request.index for row in decoder.step()} == {0, 1, 2}
    decoder.admit([request(index=9)])
    assert [row.request.index for row in decoder.preempt(2)] == [5, 9]
    assert {row.request.index for row in finish(decoder)} == {3, 4}


def test_a_join_that_fails_leaves_the_batch_as_it_was(policy, monkeypatch):
    decoder = Decoder(policy.base, NEVER_ENDS)
    decoder.admit(others())
    decoder.step()
    whole, added = AttentionLayer.add, []

    def second_layer_fails(layer, parts, length):
        added.append(layer)
        if len(added) == 2:
            raise MemoryError
        whole(layer, parts, length)

    monkeypatch.setattr(AttentionLayer, "add", second_layer_fails)
    with pytest.raises(MemoryError):
        decoder.admit([request()])
    monkeypatch.undo()
    alone = [row.tokens for each in others() for row in decode(policy.base, [each], NEVER_ENDS)]
    assert sorted(row.tokens for row in finish(decoder)) == sorted(alone)


@pytest.mark.parametrize("other", [{"seed": 6}, {"index": 1}, {"seed": -5}, {"seed": 5 + 2**32}, {"seed": 2**80}])
def test_another_seed_or_index_gives_another_completion(policy, other):
    [first], [second] = (decode(policy.base, [each], NEVER_ENDS) for each in (request(), request(**other)))
    assert first.tokens != second.tokens


def test_another_position_has_other_noise():
    for row in draws()[:20]:
        assert len(set(row)) > 1


def test_answers_come_in_the_order_of_the_asks_whichever_ends_first(policy):
    requests = [request(prompt=p, max_tokens=n) for p, n in zip(OTHERS, (9, 1, 4), strict=True)]
    assert [row.request for row in decode(policy.base, requests, NEVER_ENDS)] == requests


@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 0.3}, {"temperature": 1.7}, {"top_p": 0.4}, {"temperature": 0.7, "top_p": 0.6}],
    ids=str,
)
def test_logprobs_are_those_of_a_plain_pass_over_the_text_whatever_the_temperature_and_top_p(policy, settings):
    requests = [request(prompt=prompt, index=i, **settings) for i, prompt in enumerate([PROMPT, *OTHERS])]
    for row in decode(policy.base, requests, NEVER_ENDS):
        start = len(row.request.prompt)
        logits_TV = forward_logits(policy, (*row.request.prompt, *row.tokens))[start - 1 : -1]
        expected_T = logits_TV.log_softmax(-1)[range(len(row.tokens)), row.tokens]
        assert row.logprobs == pytest.approx(expected_T.tolist(), abs=1e-4)


def test_temperature_0_takes_the_most_likely_token_whatever_the_seed_and_the_neighbours(policy):
    requests = [request(temperature=0.0, seed=seed, top_p=top_p) for seed, top_p in [(0, 1.0), (1, 1.0), (2, 0.1)]]
    *_, first, second, third = decode(policy.base, [*others(), *requests], NEVER_ENDS)
    logits_TV = forward_logits(policy, (*PROMPT, *first.tokens))[len(PROMPT) - 1 : -1]
    assert first.tokens == logits_TV.argmax(-1).tolist()
    assert first.tokens == second.tokens == third.tokens


def test_tokens_are_drawn_from_the_softmax_of_the_logits():
    expected = dict(enumerate(PROBABILITIES.tolist()))
    assert chi_square(flat(draws()), expected) < CRITICAL[7]


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_sharpens_or_flattens_the_distribution(temperature):
    expected = dict(enumerate((torch.tensor(LOGITS) / temperature).softmax(0).tolist()))
    assert chi_square(flat(draws(temperature=temperature)), expected) < CRITICAL[7]


@pytest.mark.parametrize("seed", [0, 1])
def test_neighbouring_positions_and_neighbouring_completions_are_independent(seed):
    rows = draws(seed=seed)
    pairs = {(a, b): float(PROBABILITIES[a] * PROBABILITIES[b]) for a in range(8) for b in range(8)}
    following = [pair for row in rows for pair in zip(row[::2], row[1::2], strict=True)]
    beside = [pair for a, b in zip(rows[::2], rows[1::2], strict=True) for pair in zip(a, b, strict=True)]
    assert chi_square(following, pairs) < CRITICAL[63]
    assert chi_square(beside, pairs) < CRITICAL[63]


def test_top_p_keeps_the_fewest_tokens_that_reach_it_and_their_proportions():
    best, second, third = PROBABILITIES[[BEST, SECOND, THIRD]].tolist()
    assert best < 0.6 < best + second < 0.65 < best + second + third
    kept = {BEST: best / (best + second), SECOND: second / (best + second)}
    assert chi_square(flat(draws(top_p=0.6)), kept) < CRITICAL[1]
    assert set(flat(draws(top_p=0.65))) == {BEST, SECOND, THIRD}


def test_a_tiny_top_p_leaves_the_most_likely_token():
    assert set(flat(draws(top_p=1e-6))) == {BEST}


def test_top_p_cuts_after_the_temperature():
    sharp = (torch.tensor(LOGITS) / 0.5).softmax(0)
    assert sharp[BEST] > 0.6 > PROBABILITIES[BEST]
    assert set(flat(draws(temperature=0.5, top_p=0.6))) == {BEST}


def test_temperature_0_knows_the_most_likely_token_from_one_that_is_nearly_as_likely():
    requests = [request(seed=seed, temperature=0.0, max_tokens=20) for seed in range(20)]
    assert set(flat([row.tokens for row in decode(Constant([0.0, 1e-5, 0.0]), requests, NEVER_ENDS)])) == {1}


@pytest.mark.parametrize(("seed", "position", "token"), [(2927, 2, 48), (38961, 9, 27), (16979, 15, 61)])
def test_no_draw_of_the_hash_gives_a_token_that_is_all_but_impossible(seed, position, token):
    # the hashes of these are all ones in their upper bits: a uniform number that rounds to 1 would be infinite noise
    model = Constant([-1e4 if i == token else 0.0 for i in range(64)])
    [row] = decode(model, [request(seed=seed, max_tokens=position + 1)], NEVER_ENDS)
    assert row.tokens[position] != token
    assert min(row.logprobs) > -5


def test_the_noise_is_finite_where_the_hash_is_all_ones():
    assert gumbel(torch.tensor([0]), torch.tensor([2]), torch.arange(208_728)).isfinite().all()


def test_the_noise_has_the_mean_and_spread_of_a_gumbel_distribution():
    noise_BV = gumbel(torch.arange(200), torch.zeros(200, dtype=torch.long), torch.arange(500)).double()
    assert float(noise_BV.mean()) == pytest.approx(0.57722, abs=0.02)
    assert float(noise_BV.var()) == pytest.approx(1.64493, abs=0.05)


def test_a_token_has_the_same_noise_in_a_larger_vocabulary():
    keys, positions = torch.tensor([3, -4]), torch.tensor([0, 9])
    few, many = (gumbel(keys, positions, torch.arange(size)) for size in (50, 300))
    assert torch.equal(few, many[:, :50])


LARGE = 6001
"""A vocabulary whose tokens behind the first 4,096 are drawn in blocks; the last block has one token."""


@pytest.fixture(scope="module")
def large_logits() -> Tensor:
    """As of words, the first the most frequent; the last token is likely too, and so are some of one block."""
    logits = 1.5 * torch.randn(LARGE, generator=torch.Generator().manual_seed(3)) - torch.arange(1, LARGE + 1).log()
    logits[[LARGE - 1, 4100, 4101, 4700]] = -1.0
    return logits


def large_draws(logits: Tensor, count: int = 200, **settings: Any) -> list[list[int]]:
    requests = [request(seed=i, max_tokens=40, **settings) for i in range(count)]
    return [row.tokens for row in decode(Constant(logits.tolist()), requests, NEVER_ENDS)]


@pytest.fixture(scope="module")
def drawn(large_logits) -> list[list[int]]:
    """200 completions of 40 tokens, as the logits say."""
    return large_draws(large_logits)


def excess(tokens: list[int], probability_V: Tensor) -> float:
    """By how many standard deviations chi-square is above its mean; tokens that are rare count together."""
    expected_V = len(tokens) * probability_V.double()
    seen_V = torch.bincount(torch.tensor(tokens), minlength=LARGE).double()
    assert len(seen_V) == LARGE
    often = expected_V >= 10
    expected, seen = (torch.cat([each[often], each[~often].sum()[None]]) for each in (expected_V, seen_V))
    freedom = len(expected) - 1
    return (float(((seen - expected).square() / expected).sum()) - freedom) / (2 * freedom) ** 0.5


def test_a_large_vocabulary_is_drawn_from_in_its_proportions(large_logits, drawn):
    assert abs(excess(flat(drawn), large_logits.softmax(0))) < 4
    assert large_draws(large_logits, 20) == drawn[:20]


def test_neighbouring_draws_of_a_large_vocabulary_do_not_depend_on_each_other(drawn):
    likely = {LARGE - 1, 4100, 4101, 4700}
    kinds = [[token if token in likely else -1 for token in row] for row in drawn]
    share = Counter(flat(kinds))
    total = sum(share.values())
    pairs = {(a, b): share[a] * share[b] / total**2 for a in share for b in share}
    assert chi_square([pair for row in kinds for pair in pairwise(row)], pairs) < CRITICAL[24]


@pytest.mark.long
def test_temperature_and_top_p_hold_for_a_large_vocabulary(large_logits):
    assert abs(excess(flat(large_draws(large_logits, 60, temperature=2.0)), (large_logits / 2).softmax(0))) < 4
    kept = large_logits.softmax(0).sort(descending=True)
    within = kept.indices[: int((kept.values.cumsum(0) < 0.9).sum()) + 1]
    taken = flat(large_draws(large_logits, 60, top_p=0.9))
    assert set(taken) <= set(within.tolist())
    nucleus_V = torch.zeros(LARGE).index_copy(0, within, large_logits[within].softmax(0))
    assert abs(excess(taken, nucleus_V)) < 4


@pytest.mark.long
def test_two_checkpoints_draw_the_same_tokens_as_often_as_with_noise_for_every_token(large_logits, drawn, monkeypatch):
    changed = large_logits + 0.1 * torch.randn(LARGE, generator=torch.Generator().manual_seed(4))

    def same(first: list[list[int]]) -> float:
        pairs = zip(flat(first), flat(large_draws(changed)), strict=True)
        return sum(a == b for a, b in pairs) / (200 * 40)

    in_two_levels = same(drawn)
    monkeypatch.setattr("rolloutlab.policy.decode._FIRST", LARGE)
    assert in_two_levels > same(large_draws(large_logits)) - 0.005


@pytest.mark.parametrize("max_tokens", [1, 7])
def test_a_completion_has_at_most_max_tokens(policy, max_tokens):
    [row] = decode(policy.base, [request(max_tokens=max_tokens)], NEVER_ENDS)
    assert (len(row.tokens), len(row.logprobs), row.finish) == (max_tokens, max_tokens, "length")


def test_an_end_token_ends_the_completion_and_belongs_to_it(policy):
    [free] = decode(policy.base, [request()], NEVER_ENDS)
    end = free.tokens[4]
    until = free.tokens.index(end) + 1
    [row] = decode(policy.base, [request()], frozenset({end, 100_000}))
    assert (row.tokens, row.finish) == (free.tokens[:until], "stop")
    assert row.logprobs == pytest.approx(free.logprobs[:until], abs=1e-5)


def test_an_end_token_in_the_last_place_is_a_stop(policy):
    [free] = decode(policy.base, [request(max_tokens=1)], NEVER_ENDS)
    [row] = decode(policy.base, [request(max_tokens=1)], frozenset(free.tokens))
    assert row.finish == "stop"


def test_a_row_that_nobody_waits_for_leaves_and_the_others_go_on(policy):
    gone: list[bool] = []
    decoder = Decoder(policy.base, NEVER_ENDS)
    left, stays = request(max_tokens=1000), request(prompt=OTHERS[1])
    decoder.resume([Completion(left, watch=lambda _: "abandoned" if gone else None), Completion(stays)])
    assert decoder.step() == []
    gone.append(True)
    [row] = decoder.step()
    assert (row.request, row.finish, len(decoder)) == (left, "abandoned", 1)
    [rest] = finish(decoder)
    assert rest.tokens == decode(policy.base, [stays], NEVER_ENDS)[0].tokens


def test_a_decoder_can_be_used_again_after_it_ran_empty(policy):
    decoder = Decoder(policy.base, NEVER_ENDS)
    decoder.admit(others())
    finish(decoder)
    decoder.admit([request()])
    assert finish(decoder)[0].tokens == decode(policy.base, [request()], NEVER_ENDS)[0].tokens


def test_equal_prompts_are_read_once():
    read: list[int] = []

    class Counting(Constant):
        def __call__(self, input_ids: Tensor, **inputs: Any) -> SimpleNamespace:
            read.append(len(input_ids))
            return super().__call__(input_ids=input_ids, **inputs)

    requests = [request(prompt=prompt, index=i, max_tokens=1) for prompt in OTHERS for i in range(5)]
    rows = decode(Counting(LOGITS), requests, NEVER_ENDS)
    assert [row.request for row in rows] == requests
    assert read == [3]


@pytest.mark.parametrize("kind", [Constant, Renamed])
def test_a_model_gets_its_cache_by_the_name_that_it_was_written_with(kind):
    model = kind(LOGITS)
    [row] = decode(model, [request(max_tokens=3)], NEVER_ENDS)
    assert len(row.tokens) == 3
    assert model.widths == [len(PROMPT), len(PROMPT) + 1, len(PROMPT) + 2]


def test_a_policy_under_an_adapter_gets_its_cache_by_the_name_that_its_base_takes(policy):
    """Warnings are errors here, and transformers warns of the name that it has given up."""
    adapted = policy.with_adapter(read_adapter(policy.lora_copy()))
    [row], [alone] = (decode(model, [request(max_tokens=3)], NEVER_ENDS) for model in (adapted, policy.base))
    assert row.tokens == alone.tokens  # a new adapter changes nothing


def test_a_busy_batch_does_not_grow_without_bound():
    model = Constant(LOGITS)
    decoder = Decoder(model, NEVER_ENDS)
    for round_ in range(60):
        decoder.admit([request(prompt=OTHERS[round_ % 3], index=round_, max_tokens=10)])
        for _ in range(4):
            decoder.step()
        assert len(decoder) > 0
    assert max(model.widths) <= 10 + 10
    assert len(model.widths) > 200


def test_padding_goes_as_soon_as_the_longest_completion_leaves(policy):
    widths: list[int] = []
    watch = policy.base.register_forward_pre_hook(
        lambda _, __, inputs: widths.append(inputs["attention_mask"].shape[1]), with_kwargs=True
    )
    decoder = Decoder(policy.base, NEVER_ENDS)
    short = request(prompt=OTHERS[0], max_tokens=6)
    decoder.admit([request(prompt=tuple(range(3, 60)), max_tokens=2), short])
    done = finish(decoder)
    watch.remove()
    assert widths == [57, 58, 4, 5, 6, 7]
    assert done[-1].tokens == decode(policy.base, [short], NEVER_ENDS)[0].tokens
