"""Supervised fine-tuning: which tokens are learned, and by which loss."""

import math
from dataclasses import replace

import pytest
import torch

from rolloutlab.api.wire.fine_tuning import Conversation, SFTTrainingConfig
from rolloutlab.errors import Cancelled, TrainingError
from rolloutlab.policy.checkpoints import State
from rolloutlab.policy.fine_tuning import read_conversations, read_fine_tuning
from rolloutlab.policy.model import adapter_parameters, base_of, read_adapter
from rolloutlab.policy.task import Callbacks
from rolloutlab.policy.trainer import take_steps


def conversation(*turns, **further):
    roles = ("user", "assistant") * len(turns)
    messages = [
        turn if isinstance(turn, dict) else {"role": role, "content": turn}
        for role, turn in zip(roles, turns, strict=False)
    ]
    return Conversation.model_validate({"messages": messages, **further})


def read(policy, *conversations):
    return read_conversations([(f"line {i}", each) for i, each in enumerate(conversations, start=1)], base_of(policy))


def learned(policy, conversation):
    """The texts that are trained, one for each run of trained tokens."""
    runs = []
    for sequences in read(policy, conversation).sequences:
        for sequence in sequences:
            before = False
            for token_id, trained in zip(sequence.ids, sequence.trained, strict=True):
                if trained:
                    runs += [] if before else [[]]
                    runs[-1].append(token_id)
                before = bool(trained)
    return [policy.tokenizer.decode(run) for run in runs]


@pytest.fixture
def model(policy):
    return policy.lora_copy()


@pytest.fixture
def tune(policy, model):
    """Runs a job from the untrained adapter: the state after it, and its events."""

    def run(*conversations, cancelled=lambda: False, **config):
        events = []
        callbacks = Callbacks(lambda kind, data: events.append((kind, data)), cancelled, progress_seconds=math.inf)
        named = [(f"line {i}", each) for i, each in enumerate(conversations, start=1)]
        options = SFTTrainingConfig.model_validate(config) if config else None
        task = read_fine_tuning(base_of(policy), named, options, 0, callbacks)
        return take_steps(policy, model, State(read_adapter(policy.lora_copy()), {}), task, callbacks), events

    return run


def steps(events):
    return [data for kind, data in events if kind == "gradient_step"]


def test_every_answer_is_learned_with_its_end(policy):
    assert learned(policy, conversation("hello", "fox", "and?", "dog")) == ["fox</s>", "dog</s>"]


def test_an_answer_of_weight_0_is_context(policy):
    first = {"role": "assistant", "content": "fox", "weight": 0}
    assert learned(policy, conversation("hello", first, "and?", "dog")) == ["dog</s>"]
    whole = {"role": "assistant", "content": "fox", "weight": 1}
    assert learned(policy, conversation("hello", whole, "and?", "dog")) == ["fox</s>", "dog</s>"]


@pytest.mark.parametrize("mask", [{"weight": 0}, {"train": False}, {"training": False}, {"loss": False}])
def test_a_masked_answer_is_context_also_where_it_was_sampled(policy, mask):
    masked = {"role": "assistant", "content": "fox", **mask}
    assert learned(policy, conversation("hello", masked, "and?", "dog")) == ["dog</s>"]
    assert learned(policy, conversation("hello", chosen("fox") | mask, "and?", chosen("dog"))) == ["dog</s>"]
    assert read(policy, conversation("hello", chosen("fox") | mask)).skipped == {"no_answer": ["line 1"]}


def test_marks_of_other_meanings_mask_nothing(policy):
    odd = {"role": "assistant", "content": "fox", "train": "IC 5", "training": True}
    assert learned(policy, conversation("hello", odd)) == ["fox</s>"]


@pytest.mark.parametrize(
    "answer",
    [
        {"content": "a </s> b"},
        {"content": "a </s>"},
        {"content": "a", "reasoning_content": "hm </s> hm"},
    ],
)
def test_an_answer_with_the_end_of_a_turn_in_its_text_is_named_and_not_cut(policy, answer):
    found = read(policy, conversation("hello", "fox"), conversation("hello", {"role": "assistant", **answer}))
    assert len(found.sequences) == 1
    assert found.unreadable == {"messages.1: the text of the answer has the policy's end of a turn in it": ["line 2"]}


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_is_learned_in_whatever_field_it_is(policy, field):
    answer = {"role": "assistant", "content": "dog", field: "the fox"}
    assert learned(policy, conversation("hello", answer)) == ["<think>\nthe fox\n</think>\n\ndog</s>"]


def test_sampled_tokens_are_learned_as_they_were_sampled(policy):
    text = "fox"
    apart = [policy.tokenizer.convert_tokens_to_ids(letter) for letter in text]
    tokens = [{"token": "?", "token_id": i, "logprob": -1.0, "top_logprobs": []} for i in apart]
    choice = {
        "finish_reason": "length",
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "logprobs": {"content": tokens},
    }
    given = {"role": "assistant", "content": "an example"}
    items = [{"role": "user", "content": "one"}, given, {"role": "user", "content": "hello"}, choice]
    sampled = Conversation.model_validate({"messages_and_choices": items})
    [[sequence]] = read(policy, sampled).sequences
    assert [i for i, trained in zip(sequence.ids, sequence.trained, strict=True) if trained] == apart
    assert list(sequence.ids) != read(policy, conversation("one", given, "hello", text)).sequences[0][0].ids


def test_a_choice_without_logprobs_is_learned_as_it_is_rendered(policy):
    choice = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "dog"}}
    assert learned(policy, conversation("hello", choice)) == ["dog</s>"]


def chosen(content, *tokens, **message):
    entries = [{"token": "?", "logprob": -1.0, "top_logprobs": [], **token} for token in tokens]
    return {
        "finish_reason": "stop",
        "index": 0,
        "message": {"role": "assistant", "content": content, **message},
        "logprobs": {"content": entries},
    }


@pytest.mark.parametrize(
    "tokens",
    [
        [{"token": "dog", "token_id": 35}, {"token": "", "token_id": 1}],
        [{"token": "do", "token_id": 10**6}],
        [{"token": "no such token"}],
        [{"token": "token_id:99"}, {"token": "g", "bytes": [103]}],
    ],
)
def test_answers_of_a_model_with_other_tokens_are_learned_from_their_text_and_named(policy, tokens):
    foreign = conversation("hello", chosen("dog", *tokens))
    assert learned(policy, foreign) == ["dog</s>"]
    both = read(policy, conversation("hello", "fox"), foreign)
    [warning] = both.warnings
    assert warning == "1 conversation with tokens of another model (line 2): learned from the text of the answers"
    assert both.unreadable == {}
    alone = read(policy, conversation("hello", "dog"))
    assert both.sequences[1][0].ids == alone.sequences[0][0].ids


def test_an_answer_that_a_stop_string_left_empty_is_learned_as_it_was_sampled(policy):
    tokens = [{"token": policy.tokenizer.decode([each]), "token_id": each} for each in (35, 36)]
    cut = conversation("hello", chosen("", *tokens))
    assert learned(policy, cut) == [policy.tokenizer.decode([35, 36])]
    assert read(policy, cut).warnings == []
    foreign = conversation("hello", chosen("", {"token": "dog", "token_id": 35}))
    assert learned(policy, foreign) == ["</s>"]
    assert "with tokens of another model" in str(read(policy, foreign).warnings)


def test_a_call_of_a_model_with_other_tokens_is_not_learned_from_their_ids(policy):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    answer = chosen(None, {"token": "<tool_call>", "token_id": 35}, tool_calls=[call])
    assert "@" not in "".join(learned(policy, conversation("hello", answer)))


def test_a_context_of_a_model_with_other_tokens_is_read_as_its_text(policy):
    foreign = conversation("hello", chosen("dog", {"token": "dog", "token_id": 35}), "and?", chosen("fox"))
    assert learned(policy, foreign) == ["dog</s>", "fox</s>"]


@pytest.mark.parametrize(
    "answer",
    [
        ("dog", "dog cat</s>"),  # a stop string was cut off
        ("dog", " dog\n</s>"),
        ("", "</s>"),
        ("<think>why</think>dog", "<think>why</think>dog</s>"),
    ],
)
def test_sampled_answers_that_were_cut_are_still_learned_as_they_were_sampled(policy, answer):
    content, sampled = answer
    ids = policy.tokenizer(sampled, add_special_tokens=False)["input_ids"]
    choice = chosen(content, *({"token_id": token_id} for token_id in ids))
    found = read(policy, conversation("hello", choice))
    [[sequence]] = found.sequences
    assert list(sequence.ids)[-len(ids) :] == ids
    assert found.warnings == []


@pytest.mark.parametrize("reason", ["length", "content_filter"])
@pytest.mark.parametrize("tokens", [[], [{"token": "do", "token_id": 10**6}]])
def test_an_answer_that_was_cut_off_is_named_and_learns_no_end(policy, reason, tokens):
    cut = conversation("hello", "fox", "and?", chosen("dog", *tokens) | {"finish_reason": reason})
    found = read(policy, conversation("hello", "fox"), cut)
    why = f"messages.3: the answer was cut off ({reason}), so its end is not known"
    assert found.unreadable == {why: ["line 2"]}
    assert len(found.sequences) == 1


def test_an_answer_that_a_service_broke_off_is_named_with_its_word(policy):
    broken = chosen("dog") | {"finish_reason": "length", "reported_finish_reason": "abort"}
    [why] = read(policy, conversation("hello", broken)).unreadable
    assert "the answer was cut off (abort)" in why


@pytest.mark.parametrize("word", ["length", "max_tokens", "MAX_TOKENS", "abort", "error"])
def test_a_line_or_message_with_the_finish_reason_of_a_cut_answer_is_named(policy, word):
    cut = {"role": "assistant", "content": "dog", "finish_reason": word}
    later = {"role": "user", "content": "and?"}
    found = read(
        policy,
        conversation("hello", cut),
        conversation("hello", "dog", finish_reason=word),
        conversation(*"abcdefghijk", cut),
        conversation("hello", cut | {"weight": 0}, later, "fox"),
        conversation("hello", "dog", later, finish_reason=word),
    )
    assert [name for names in found.unreadable.values() for name in names] == ["line 1", "line 2", "line 3"]
    assert len(found.sequences) == 2


@pytest.mark.parametrize("word", ["stop", "end_turn", "tool_calls", None, "", 7, "a word that is not known"])
def test_a_finish_reason_of_a_whole_answer_leaves_out_nothing(policy, word):
    whole = {"role": "assistant", "content": "dog", "finish_reason": word}
    assert learned(policy, conversation("hello", whole, finish_reason=word)) == ["dog</s>"]


def test_what_is_left_out_has_a_reason(policy):
    image = [{"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}]
    found = read(
        policy,
        conversation("hello", "fox"),
        conversation("hello"),
        conversation("long " * 200, "fox"),
        conversation({"role": "user", "content": image}, "fox"),
    )
    assert (found.number, len(found.sequences)) == (4, 1)
    assert found.skipped == {"no_answer": ["line 2"], "too_long": ["line 3"], "unreadable": ["line 4"]}
    assert list(found.unreadable.values()) == [["line 4"]]


def test_tools_that_the_template_does_not_render_are_named_in_the_report(policy):
    function = {"name": "add", "parameters": {"type": "object", "properties": {}}}
    told = conversation("hello", "fox", tools=[{"type": "function", "function": function}])
    older = conversation("hello", "fox", functions=[function])
    found = read(
        policy, told, conversation("hello", "fox", tools=[]), older, conversation(*"abcdefghij", tools=told.tools)
    )
    assert found.unreadable == {"the policy's chat template does not render tools": ["line 1", "line 3", "line 4"]}
    assert len(found.sequences) == 1


def test_the_loss_is_the_mean_negative_logprob_of_the_learned_tokens(policy, tune):
    conversations = [conversation("hello", "fox", "and?", "lazy dog"), conversation("hello", "the quick brown fox")]
    _, events = tune(*conversations)
    logprobs = []
    for sequences in read(policy, *conversations).sequences:
        for sequence in sequences:
            ids_L = torch.tensor(list(sequence.ids))
            with torch.no_grad():
                all_LV = policy.base(ids_L[None]).logits[0].log_softmax(-1)
            logprobs += [all_LV[i - 1, ids_L[i]] for i, trained in enumerate(sequence.trained) if trained]
    [step] = steps(events)
    assert step["loss"] == pytest.approx(-float(torch.stack(logprobs).mean()), rel=1e-4)
    assert step["row_tokens"] == step["num_trainable_tokens"] == len(logprobs)


def test_the_gradient_is_that_of_cross_entropy(policy, tune):
    """That of torch's cross-entropy on another copy of the policy; AdamW's first moment is a tenth of it."""
    state, _ = tune(conversation("hello", "the quick brown fox"))
    model = policy.lora_copy()
    [[sequence]] = read(policy, conversation("hello", "the quick brown fox")).sequences
    ids_L, trained_L = torch.tensor(list(sequence.ids)), torch.tensor(list(sequence.trained)).bool()
    target_L = torch.where(trained_L, ids_L, -100)
    torch.nn.functional.cross_entropy(model(ids_L[None]).logits[0, :-1], target_L[1:]).backward()
    parameters = adapter_parameters(model)
    torch.nn.utils.clip_grad_norm_(parameters.values(), max_norm=1.0)
    for name, parameter in parameters.items():
        torch.testing.assert_close(10 * state.optimizer[f"{name}.exp_avg"], parameter.grad, rtol=1e-3, atol=1e-6)


def test_a_loss_falls_over_the_steps_of_a_job(tune):
    _, events = tune(*[conversation("hello", "the quick brown fox")] * 8, batch_size=1)
    losses = [step["loss"] for step in steps(events)]
    assert len(losses) == 8
    assert losses[-1] < losses[0]


def test_a_batch_has_so_many_conversations_and_a_rate_of_its_own(tune):
    _, events = tune(*[conversation("hello", "fox")] * 5, batch_size=2, learning_rate=[1e-3, 5e-4, 0, 7])
    kinds = [kind for kind, _ in events]
    assert kinds == ["training_started", "preflight", *["gradient_step"] * 3]
    assert events[0][1]["num_sequences"] == 3
    assert [step["learning_rate"] for step in steps(events)] == [1e-3, 5e-4, 0]
    assert steps(events)[0]["row_tokens"] == 2 * steps(events)[2]["row_tokens"]


@pytest.mark.parametrize(("least", "number", "sizes"), [(4, 9, [4, 5]), (8, 20, [8, 12]), (8, 7, [7]), (1, 3, [1] * 3)])
def test_a_step_has_some_conversations_however_long_they_are(policy, least, number, sizes):
    found = read(policy, *[conversation("hello", "the quick brown fox")] * number)
    base = replace(base_of(policy), batch_tokens=1, groups_per_step=least)
    made = found.steps(base)
    assert [step.groups for step in made] == sizes
    assert [tokens for step in made for tokens in step.tokens] == [each for some in found.sequences for each in some]


def test_short_conversations_fill_a_step(policy):
    found = read(policy, *[conversation("hello", "fox")] * 30)
    [[first]] = found.sequences[:1]
    base = replace(base_of(policy), batch_tokens=10 * len(first), groups_per_step=4)
    assert [step.groups for step in found.steps(base)] == [10, 10, 10]
    assert [step.groups for step in found.steps(base, 7)] == [7, 7, 7, 7, 2]


def test_numbers_of_a_step_are_finite_and_of_no_policy_that_sampled(tune):
    _, events = tune(conversation("hello", "fox"))
    [step] = steps(events)
    assert all(math.isfinite(value) for value in step.values())
    assert not step.keys() & {"ratio_mean", "kl", "clipped", "reward"}


def test_fewer_rates_than_steps_are_an_error(tune):
    with pytest.raises(TrainingError, match="2 learning rates for 3 gradient steps"):
        tune(*[conversation("hello", "fox")] * 3, batch_size=1, learning_rate=[1e-3, 1e-3])


def test_the_same_job_gives_the_same_tensors(tune):
    once, _ = tune(conversation("hello", "fox"), conversation("hello", "dog"))
    again, _ = tune(conversation("hello", "fox"), conversation("hello", "dog"))
    assert all(torch.equal(once.adapter[name], again.adapter[name]) for name in once.adapter)


def test_a_cancelled_job_stops(tune):
    with pytest.raises(Cancelled):
        tune(conversation("hello", "fox"), cancelled=lambda: True)


def test_a_job_in_which_nothing_is_learned_keeps_the_weights(policy, tune):
    state, events = tune(conversation("hello"))
    assert steps(events) == []
    assert all(torch.equal(state.adapter[name], each) for name, each in read_adapter(policy.lora_copy()).items())
