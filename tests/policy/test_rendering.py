"""Conversations become token ids as they were sampled, or are refused."""

import copy
from datetime import date, datetime
from typing import Any

import pytest

from rolloutlab.api.wire.chat import ChatRequest, FunctionTool, UserMessage
from rolloutlab.api.wire.trajectories import History
from rolloutlab.errors import RenderingError
from rolloutlab.policy.model import Policy, base_of, load_policy
from rolloutlab.policy.rendering import Renderer
from rolloutlab.policy.template_date import DATE
from rolloutlab.policy.token_sequence import TokenSequence
from tests.policies import policy_with

TOOLS = (
    "<s>{% for t in tools or [] %}[ask]{{ t.function.name }}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}[tell]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    "{% for k, v in c.function.arguments.items() %} {{ k }} is {{ v }}{% endfor %}{% endfor %}</s>"
    "{% else %}[ask]{{ m.role }} {{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}[tell]{% endif %}"
)
FORGETS_REASONING = (
    "<s>{% for m in messages %}{% if m.role == 'assistant' %}[tell]{{ m.content.split('</think>')[-1] }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}</s>"
    "{% else %}[ask]{{ m.role }} {{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}[tell]{% endif %}"
)
LAST_TWO_ONLY = (
    "<s>{% for m in messages[-2:] %}[ask]{{ m.role }} {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}[tell]{% endif %}"
)
REMINDS = (
    "{% for m in messages %}{% if loop.last %}[ask]be quick{% endif %}[ask]{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}[tell]{% endif %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}"
    "{{ m.content }}{% endfor %}"
)
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def policy(tiny_policy) -> Policy:
    return load_policy(str(tiny_policy))


@pytest.fixture(scope="module")
def renderer(policy) -> Renderer:
    return Renderer(policy.tokenizer, policy.end_ids)


@pytest.fixture
def with_template(policy):
    def make(template: str, **options: Any) -> Renderer:
        tokenizer = copy.deepcopy(policy.tokenizer)
        tokenizer.chat_template = template
        return Renderer(tokenizer, policy.end_ids, **options)

    return make


@pytest.fixture(scope="module")
def encode(policy):
    return lambda text: policy.tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.fixture(scope="module")
def end(encode) -> int:
    [end] = encode("</s>")
    return end


def user(content: Any = "a", **overrides: Any) -> dict[str, Any]:
    return {"role": "user", "content": content} | overrides


def entry(token_id: int | None = None, **overrides: Any) -> dict[str, Any]:
    known = {} if token_id is None else {"token_id": token_id, "logprob": -token_id / 8}
    return {"token": "?", "logprob": -0.5, "top_logprobs": []} | known | overrides


def choice(ids: list[int], content: str | None = "said", message: Any = None, **overrides: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": content} | (message or {})
    logprobs = {"content": [entry(i) for i in ids]}
    return {"finish_reason": "stop", "index": 0, "message": said, "logprobs": logprobs} | overrides


@pytest.fixture(scope="module")
def say(renderer):
    """A Choice whose content is the text of its sampled tokens."""
    return lambda ids, **overrides: choice(ids, renderer.text(ids), **overrides)


def history(*items: dict[str, Any], **overrides: Any) -> History:
    return History.model_validate({"messages_and_choices": list(items)} | overrides)


def messages(*items: dict[str, Any]) -> Any:
    return ChatRequest.model_validate({"model": "m", "messages": list(items)}).messages


def sequence_of(renderer: Renderer, history: History) -> TokenSequence:
    """The sequence of a history that is one."""
    sequences = renderer.sequences(history)
    assert len(sequences) <= 1
    return sequences[0] if sequences else TokenSequence()


def trained(sequence: TokenSequence) -> list[int]:
    return [i for i, t in zip(sequence.ids, sequence.trained, strict=True) if t]


def test_a_prompt_is_the_chat_template_up_to_where_the_answer_begins(renderer, policy, encode):
    said = [
        {"role": "system", "content": "be quick"},
        user("the fox?"),
        {"role": "assistant", "content": "yes"},
        user(),
    ]
    ids = renderer.prompt(messages(*said))
    assert ids == encode("<s>[ask]system be quick[ask]user the fox?[tell]yes</s>[ask]user a[tell]")
    assert ids == policy.tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False)


def test_the_template_is_given_the_tools(with_template, encode):
    renderer, tools = with_template(TOOLS), [FunctionTool.model_validate(TOOL)]
    assert renderer.prompt(messages(user()), tools) == encode("<s>[ask]add[ask]user a[tell]")
    sequence = sequence_of(renderer, history(user(), choice([9]), tools=[TOOL]))
    assert list(sequence.ids) == [*encode("<s>[ask]add[ask]user a[tell]"), 9]


def test_the_template_sees_the_arguments_of_a_tool_call_as_an_object(with_template, encode):
    called = {"role": "assistant", "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "3"}
    ids = with_template(TOOLS).prompt(messages(user(), called, result))
    assert ids == encode("<s>[ask]user a[tell]add a is 1 b is 2</s>[ask]tool 3[tell]")


def test_arguments_that_are_not_json_stay_a_text(with_template, encode):
    template = "{% for m in messages %}{% set f = m.tool_calls[0].function %}{{ f.name }} {{ f.arguments }}{% endfor %}"
    call = CALL | {"function": {"name": "add", "arguments": "a=1"}}
    assert with_template(template).prompt(messages({"role": "assistant", "tool_calls": [call]})) == encode("add a=1")


def test_a_sequence_is_the_prompt_then_the_sampled_tokens_with_their_logprobs(renderer, end, say):
    prompt = renderer.prompt(messages(user("the fox")))
    sequence = sequence_of(renderer, history(user("the fox"), say([40, 41, end])))
    assert list(sequence.ids) == [*prompt, 40, 41, end]
    assert list(sequence.trained) == [False] * len(prompt) + [True] * 3
    assert list(sequence.logprobs) == [0.0] * len(prompt) + [-40 / 8, -41 / 8, -end / 8]
    assert (len(sequence), sequence.trainable) == (len(prompt) + 3, 3)


def test_the_prompt_that_the_members_of_a_group_share_is_rendered_once(with_template, encode, say, end, monkeypatch):
    renderer, rendered = with_template(TOOLS), []
    answers = [say([*encode(text), end]) for text in ("b", "c", "d")]
    first = [renderer.sequences(history(user(), answer)) for answer in answers]
    apply = renderer._tokenizer.apply_chat_template
    monkeypatch.setattr(
        renderer._tokenizer,
        "apply_chat_template",
        lambda *given, **options: rendered.append(1) or apply(*given, **options),
    )
    other = renderer.sequences(history(user("other"), answers[0]))
    assert rendered == [1]
    assert [renderer.sequences(history(user(), answer)) for answer in answers] == first
    assert rendered == [1, 1]
    assert other != first[0]


def test_what_trains_is_the_sampled_ids_and_not_a_tokenisation_of_their_text(renderer, policy, encode, end):
    letters = [policy.tokenizer.convert_tokens_to_ids(letter) for letter in "the"]
    assert renderer.text(letters) == "the"
    assert encode("the") != letters
    assert trained(sequence_of(renderer, history(user(), choice([*letters, end], "the")))) == [*letters, end]


def test_token_ids_of_a_message_are_read_as_they_were_sampled_and_not_trained(renderer, policy, encode, end, say):
    letters = [policy.tokenizer.convert_tokens_to_ids(letter) for letter in "the"]
    turn = {"role": "assistant", "content": "the", "token_ids": [*letters, end]}
    sequence = sequence_of(renderer, history(user("a"), turn, user("b"), say([50, end])))
    assert list(sequence.ids) == [*encode("<s>[ask]user a[tell]"), *letters, end, *encode("[ask]user b[tell]"), 50, end]
    assert trained(sequence) == [50, end]


@pytest.mark.parametrize("ids", [[40], [10**6]])
def test_token_ids_of_another_message_or_policy_are_read_as_the_text(renderer, encode, end, say, ids):
    turn = {"role": "assistant", "content": "the", "token_ids": [*ids, end]}
    sequence = sequence_of(renderer, history(user("a"), turn, user("b"), say([50, end])))
    assert list(sequence.ids) == [*encode("<s>[ask]user a[tell]the</s>[ask]user b[tell]"), 50, end]


def test_earlier_turns_train_too_and_an_end_of_turn_is_not_doubled(renderer, encode, end, say):
    sequence = sequence_of(renderer, history(user("a"), say([40, end]), user("b"), say([50, 51, end])))
    first, second = encode("<s>[ask]user a[tell]"), encode("[ask]user b[tell]")
    assert list(sequence.ids) == [*first, 40, end, *second, 50, 51, end]
    assert trained(sequence) == [40, end, 50, 51, end]
    assert list(sequence.logprobs[-3:]) == [-50 / 8, -51 / 8, -end / 8]
    assert list(sequence.logprobs[len(first) :][:3]) == [-5.0, -end / 8, 0.0]


def test_the_end_of_a_turn_that_ran_out_of_tokens_is_context(renderer, encode, end, say):
    cut_short = say([40, 41], finish_reason="length")
    sequence = sequence_of(renderer, history(user("a"), cut_short, user("b"), say([50, end])))
    assert list(sequence.ids) == [*encode("<s>[ask]user a[tell]"), 40, 41, *encode("</s>[ask]user b[tell]"), 50, end]
    assert trained(sequence) == [40, 41, 50, end]


def test_a_token_that_is_no_end_of_turn_may_come_twice_in_a_row(with_template, encode, say, end):
    # the answer ran out of tokens at the very character that the template writes after it
    [mark] = encode("!")
    loud = with_template("{% for m in messages %}{{ m.content }}!{% endfor %}")
    sequence = sequence_of(loud, history(user("a"), say([40, mark]), user("b"), say([50, end])))
    assert list(sequence.ids) == [*encode("a!"), 40, mark, *encode("!b!"), 50, end]


def test_an_answer_without_a_word_trains_its_end_of_turn(renderer, encode, end, say):
    sequence = sequence_of(renderer, history(user("a"), say([end]), user("b"), say([50, end])))
    assert list(sequence.ids) == [*encode("<s>[ask]user a[tell]"), end, *encode("[ask]user b[tell]"), 50, end]


def test_everything_after_the_last_sampled_answer_is_cut_off(renderer, end, say):
    items = [user(), say([40, end])]
    later = [user("b"), {"role": "assistant", "content": "c"}, user("d"), choice([], "e")]
    assert sequence_of(renderer, history(*items, *later)) == sequence_of(renderer, history(*items))


def test_what_is_cut_off_need_not_be_readable(renderer, end):
    items = [user(), choice([40, end])]
    picture = user([{"type": "image_url", "image_url": {"url": "data:,"}}])
    assert sequence_of(renderer, history(*items, picture)) == sequence_of(renderer, history(*items))


@pytest.mark.parametrize(
    "silent",
    [
        {"role": "assistant", "content": "yes"},
        choice([], "yes"),
        choice([], "yes", logprobs=None),
        choice([], "yes", logprobs={"content": [], "refusal": []}),
    ],
    ids=["a message", "empty content", "no logprobs", "all empty"],
)
def test_assistant_messages_and_choices_without_logprobs_are_context(renderer, encode, end, silent):
    sequence = sequence_of(renderer, history(user("a"), silent, user("b"), choice([50, end])))
    assert list(sequence.ids) == [*encode("<s>[ask]user a[tell]yes</s>[ask]user b[tell]"), 50, end]
    assert trained(sequence) == [50, end]


def test_a_history_without_sampled_tokens_has_nothing_to_train(renderer):
    sequence = sequence_of(renderer, history(user(), {"role": "assistant", "content": "yes"}))
    assert (len(sequence), sequence.trainable) == (0, 0)


def test_a_refusal_trains_the_tokens_of_the_refusal(renderer, end):
    refused = choice([], None, {"refusal": "no"}, logprobs={"content": [], "refusal": [entry(60), entry(end)]})
    assert trained(sequence_of(renderer, history(user(), refused))) == [60, end]


def test_content_trains_rather_than_the_refusal_when_both_have_logprobs(renderer, end):
    both = choice([], logprobs={"content": [entry(40), entry(end)], "refusal": [entry(60)]})
    assert trained(sequence_of(renderer, history(user(), both))) == [40, end]


def test_a_sampled_tool_call_trains_as_it_was_sampled(with_template, policy, encode, end):
    letters = policy.tokenizer.convert_tokens_to_ids([*"addĠaĠisĠ1ĠbĠisĠ2"])
    called = choice([*letters, end], None, {"tool_calls": [CALL]}, finish_reason="tool_calls")
    result = {"role": "tool", "tool_call_id": "c1", "content": "3"}
    sequence = sequence_of(with_template(TOOLS), history(user("a"), called, result, choice([50, end]), tools=[TOOL]))
    before = encode("<s>[ask]add[ask]user a[tell]")
    assert list(sequence.ids) == [*before, *letters, end, *encode("[ask]tool 3[tell]"), 50, end]
    assert trained(sequence) == [*letters, end, 50, end]


def test_a_tool_call_without_logprobs_is_context(with_template, encode, end):
    called = choice([], None, {"tool_calls": [CALL]}, logprobs=None, finish_reason="tool_calls")
    result = {"role": "tool", "tool_call_id": "c1", "content": "3"}
    sequence = sequence_of(with_template(TOOLS), history(user("a"), called, result, choice([50, end])))
    assert list(sequence.ids) == [*encode("<s>[ask]user a[tell]add a is 1 b is 2</s>[ask]tool 3[tell]"), 50, end]


@pytest.mark.parametrize(
    "named",
    [
        lambda i, text, raw: {"token_id": i},
        lambda i, text, raw: {"token": f"token_id:{i}"},
        lambda i, text, raw: {"bytes": raw},
        lambda i, text, raw: {"token": text},
        lambda i, text, raw: {"token": f"token_id:{i}", "bytes": [113]},
        lambda i, text, raw: {"token_id": i, "token": "q", "bytes": [113]},
        lambda i, text, raw: {"token": "q", "bytes": raw},
    ],
    ids=["token_id", "token_id:N", "bytes", "text", "token_id:N over bytes", "token_id over all", "bytes over text"],
)
@pytest.mark.parametrize("text", ["the", " fox", "z", "</s>", "\n"])
def test_a_sampled_token_is_known_by_its_id_its_name_its_bytes_or_its_text(renderer, encode, named, text):
    token_id = encode(text)[0]
    own_text, raw = renderer.token(token_id)
    given = choice([], logprobs={"content": [entry(**named(token_id, own_text, raw))]})
    assert trained(sequence_of(renderer, history(user(), given))) == [token_id]


def test_a_part_of_a_character_is_known_by_its_bytes(renderer, encode):
    parts = encode("é€")
    assert len(parts) == 5
    entries = [entry(token="\ufffd", bytes=renderer.token(i)[1]) for i in parts]
    assert trained(sequence_of(renderer, history(user(), choice([], logprobs={"content": entries})))) == parts


@pytest.mark.parametrize(
    "unknown",
    [
        {"token": "never heard of"},
        {"token": "token_id:100000"},
        {"token": "token_id:-1"},
        {"token": "token_id:seven"},
        {"token_id": 100_000},
        {"token_id": -1},
        {"token_id": 100_000, "token": "z"},
        {"token": "\ufffd"},
        {"token": "\ufffd", "bytes": [255, 255]},
        {"token": "\ufffd", "bytes": [999]},
        {"token": "\ufffd", "bytes": [-1]},
    ],
    ids=str,
)
def test_a_token_that_the_vocabulary_does_not_have_is_refused_by_name(renderer, unknown):
    given = choice([], logprobs={"content": [entry(**({"token": "??"} | unknown))]})
    with pytest.raises(RenderingError) as caught:
        sequence_of(renderer, history(user(), given))
    assert repr(unknown.get("token", "??")) in str(caught.value)


@pytest.mark.parametrize(
    "earlier",
    [
        pytest.param({"content": "<think>hm</think>yes"}, id="in the content"),
        pytest.param({"content": "yes", "reasoning_content": "hm"}, id="beside the content"),
    ],
)
def test_a_template_that_drops_the_reasoning_of_earlier_turns_begins_a_new_sequence(
    with_template, encode, end, earlier
):
    thought = [*encode("<think>hm</think>yes"), end]
    items = [user(), choice(thought, message=earlier), user("b"), choice([50, end])]
    first, second = with_template(FORGETS_REASONING).sequences(history(*items))
    assert list(first.ids) == [*encode("<s>[ask]user a[tell]"), *thought]
    assert list(second.ids) == [*encode("<s>[ask]user a[tell]yes</s>[ask]user b[tell]"), 50, end]
    assert (trained(first), trained(second)) == (thought, [50, end])


def test_such_a_template_is_fine_while_there_is_one_answer_or_no_reasoning(with_template, encode, end):
    forgetful, reasoned = with_template(FORGETS_REASONING), "<think>hm</think>yes"
    ids = [*encode(reasoned), end]
    assert trained(sequence_of(forgetful, history(user(), choice(ids, reasoned)))) == ids
    plain = [*encode("yes"), end]
    items = [user(), choice(plain, "yes"), user("b"), choice(ids, reasoned)]
    assert trained(sequence_of(forgetful, history(*items))) == plain + ids
    context = choice([], reasoned)
    sequence = sequence_of(forgetful, history(user(), context, user("b"), choice(plain, "yes")))
    assert list(sequence.ids) == encode("<s>[ask]user a[tell]yes</s>[ask]user b[tell]") + plain


def test_a_template_that_drops_earlier_turns_begins_a_new_sequence_at_each(with_template, encode, end, say):
    items = [user(), say([40, end]), user("b"), say([50, end]), user("c"), say([60, end])]
    sequences = with_template(LAST_TWO_ONLY).sequences(history(*items))
    assert [trained(each) for each in sequences] == [[40, end], [50, end], [60, end]]
    answer = with_template(LAST_TWO_ONLY).text([50])
    assert list(sequences[2].ids) == [*encode(f"<s>[ask]assistant {answer}</s>[ask]user c</s>[tell]"), 60, end]


def test_a_template_that_writes_something_before_the_last_question_only_begins_a_new_sequence(with_template, say, end):
    sequences = with_template(REMINDS).sequences(history(user(), say([40, end]), user("b"), say([50, end])))
    assert [trained(each) for each in sequences] == [[40, end], [50, end]]


def test_an_answer_whose_text_was_changed_begins_a_new_sequence_with_the_changed_text(renderer, encode, end):
    # as a stop string does, which is sampled and cut off the text
    items = [user(), choice(encode("yes!"), "yes"), user("b"), choice([50, end])]
    first, second = renderer.sequences(history(*items))
    assert trained(first) == encode("yes!")
    assert list(second.ids) == [*encode("<s>[ask]user a[tell]yes</s>[ask]user b[tell]"), 50, end]


def test_turns_that_the_template_keeps_are_read_as_sampled_beside_one_that_it_changes(
    with_template, policy, encode, end
):
    letters = [policy.tokenizer.convert_tokens_to_ids(letter) for letter in "the"]  # "the" is one token in a text
    thought = [*encode("<think>hm</think>yes"), end]
    spelled, reasoned = choice([*letters, end], "the"), choice(thought, "<think>hm</think>yes")
    items = [user(), spelled, user("b"), reasoned, user("c"), choice([50, end])]
    first, second = with_template(FORGETS_REASONING).sequences(history(*items))
    spelled_out = [*encode("<s>[ask]user a[tell]"), *letters, end]
    assert list(first.ids) == [*spelled_out, *encode("[ask]user b[tell]"), *thought]
    assert list(second.ids) == [*spelled_out, *encode("[ask]user b[tell]yes</s>[ask]user c[tell]"), 50, end]


@pytest.mark.parametrize("template", [None, TOOLS, FORGETS_REASONING, LAST_TWO_ONLY, REMINDS])
def test_every_turn_is_trained_after_the_prompt_that_is_sampled_from(policy, renderer, with_template, template, end):
    renderer = with_template(template) if template else renderer
    letters = policy.tokenizer.convert_tokens_to_ids
    answers = [[*letters([*"the"]), end], [*letters([*"no"])], letters([*"<think>x</think>ok"]), [end], [40, 41, end]]
    items: list[Any] = []
    for ids in answers:
        items += [user(f"q{len(items)}"), choice(ids, renderer.text(ids))]
    sequences = renderer.sequences(history(*items))
    read = {tuple(each.ids[: i + 1]) for each in sequences for i, trains in enumerate(each.trained) if trains}
    sent = [each["message"] | {"token_ids": ids} for each, ids in zip(items[1::2], answers, strict=True)]
    begins = 0
    for turn, ids in enumerate(answers):
        before = [message for pair in zip(items[0 : 2 * turn : 2], sent[:turn], strict=True) for message in pair]
        asked = messages(*before, items[2 * turn])
        prompt = renderer.prompt(asked)
        assert (*prompt, *ids) in read
        begins += renderer.continues(prompt, asked) is False
    assert begins == len(sequences) - 1
    assert sum(each.trainable for each in sequences) == sum(map(len, answers))


def test_token_ids_of_another_text_are_refused(renderer, encode, end):
    answered = {"role": "assistant", "content": "yes"}
    with pytest.raises(RenderingError, match=r"messages\.1\.token_ids: these are not the tokens"):
        renderer.prompt(messages(user(), answered | {"token_ids": [*encode("no"), end]}, user("b")))
    with pytest.raises(RenderingError, match="not all of them are in the policy's vocabulary"):
        renderer.prompt(messages(user(), answered | {"token_ids": [10**6]}, user("b")))


def test_all_messages_whose_token_ids_are_of_another_text_are_named(renderer, encode):
    foreign = {"role": "assistant", "content": "yes", "token_ids": encode("no")}
    own, unknown = {**foreign, "token_ids": encode("yes")}, {**foreign, "token_ids": [10**6]}
    with pytest.raises(RenderingError) as refused:
        renderer.prompt(messages(user(), foreign, user(), own, user(), unknown, user()))
    assert refused.value.message == (
        "messages.1.token_ids: these are not the tokens of the message; "
        "messages.5.token_ids: not all of them are in the policy's vocabulary"
    )


@pytest.mark.parametrize(
    ("message", "ids"),
    [
        ({"content": "yes"}, "and yes"),
        ({"content": "yes"}, "yes</s>[ask]user no"),
        ({"content": ""}, "no"),
        ({"content": "yes", "tool_calls": [CALL]}, "no"),
        ({"content": "yes", "reasoning_content": "hm"}, "<think>no</think>yes"),
        ({"content": "yes"}, "yes and no"),
        ({"content": "yes"}, "<think>hm</think>yes and no"),
        ({"content": "yes", "reasoning_content": "hm"}, "<think>hm</think>yes and no"),
        ({"content": "", "reasoning_content": "hm"}, "<think>hm</think>yes"),
    ],
)
def test_token_ids_of_more_than_the_message_are_refused(renderer, encode, end, message, ids):
    given = {"role": "assistant", **message, "token_ids": [*encode(ids), end]}
    assert renderer._find_wrong(messages(user(), given)[1]) == "these are not the tokens of the message"


@pytest.mark.parametrize(
    ("message", "ids"),
    [
        ({"content": "yes"}, "<think>hm</think>\n\nyes"),
        ({"content": "yes", "reasoning_content": "hm"}, "<think>\nhm\n</think>\n\nyes"),
        ({"content": "yes", "reasoning_content": "hm"}, "hm</think>yes"),
        ({"content": "", "reasoning_content": "hm"}, "<think>hm"),
        ({"content": ""}, ""),
        ({"content": ""}, "<think>"),
        ({"content": "</think>a</think>b"}, "</think>a</think>b"),
        ({"content": "yes", "tool_calls": [CALL]}, 'yes<tool_call>{"name": "add", "arguments": {}}</tool_call>'),
    ],
)
def test_token_ids_of_a_message_are_read(renderer, encode, end, message, ids):
    ids = [*encode(ids), end]
    given = {"role": "assistant", **message, "token_ids": ids}
    assert renderer._find_wrong(messages(user(), given)[1]) is None


@pytest.mark.parametrize(
    ("message", "ids"),
    [
        ({"content": "yes"}, "yes STOP"),
        ({"content": ""}, "STOP"),
        ({"content": "\n"}, "\nSTOP"),
        ({"content": ""}, "<think>STOP"),
        ({"content": "yes", "reasoning_content": "hm"}, "<think>hm</think>yes STOP"),
        ({"content": "", "reasoning_content": "hm"}, "<think>hm STOP"),
        ({"content": "yes", "tool_calls": [CALL]}, 'yes<tool_call>{"name": "add", "arguments": {}}</tool_call> STOP'),
    ],
)
def test_what_a_stop_string_cut_off_may_follow_a_turn_without_its_end(renderer, encode, end, message, ids):
    given = {"role": "assistant", **message, "token_ids": encode(ids)}
    assert renderer._find_wrong(messages(user(), given)[1]) is None


def test_white_space_that_the_template_writes_before_an_answer_was_not_read(with_template, encode, say, end):
    padded = (
        "{% for m in messages %}{% if m.role == 'user' %}[ask]{{ m.content }}{% else %} {{ m.content }}</s>{% endif %}"
        "{% endfor %}"
    )
    turns = history(user("a"), say([40, end]), user("b"), say([50, end]))
    sequence = sequence_of(with_template(padded), turns)
    assert list(sequence.ids) == [*encode("[ask]a"), 40, end, *encode("[ask]b"), 50, end]


def test_ids_of_calls_are_short_where_the_template_requires_it(with_template, encode):
    strict = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('9') }}"
        "{% endif %}{{ c.function.name }} {{ c.id }}{% endfor %}{% if m.role == 'tool' %}"
        "{% if m.tool_call_id | length != 9 %}{{ raise_exception('9') }}{% endif %}{{ m.tool_call_id }} {% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    renderer = with_template(strict)
    for given, rendered in (("abcdefghi", "abcdefghi"), ("call_" + "0" * 24, None)):
        call, result = CALL | {"id": given}, {"role": "tool", "tool_call_id": given, "content": "3"}
        text = renderer.text(renderer.prompt(messages(user("a"), {"role": "assistant", "tool_calls": [call]}, result)))
        short = text.removeprefix("aadd ")[:9]
        assert text == f"aadd {short}{short} 3"
        assert short == (rendered or short)


def test_a_text_that_looks_like_a_placeholder_is_a_text(renderer, encode, say, end):
    sly = "sampled:0; sampled:0123456789abcdef:1;"
    sequence = sequence_of(renderer, history(user(sly), say([40, end]), user(sly), say([50, end])))
    assert encode(f"[ask]user {sly}[tell]") == list(sequence.ids)[-2 - len(encode(f"[ask]user {sly}[tell]")) : -2]


def test_what_the_template_itself_refuses_is_refused_in_its_words(with_template, end):
    system = {"role": "system", "content": "be quick"}
    with pytest.raises(RenderingError, match="no system messages"):
        with_template(NO_SYSTEM).prompt(messages(system, user()))
    with pytest.raises(RenderingError, match="no system messages"):
        sequence_of(with_template(NO_SYSTEM), history(system, user(), choice([40, end])))


@pytest.mark.parametrize("role", ["developer", "system", "user", "assistant"])
def test_text_parts_are_joined(renderer, role):
    parts = [{"type": "text", "text": "the quick"}, {"type": "text", "text": " fox"}]
    joined = renderer.prompt(messages({"role": role, "content": parts}))
    assert joined == renderer.prompt(messages({"role": role, "content": "the quick fox"}))


def test_a_refusal_part_is_read_as_its_text(renderer):
    parts = [{"type": "text", "text": "sorry: "}, {"type": "refusal", "refusal": "no"}]
    spoken = renderer.prompt(messages({"role": "assistant", "content": parts}))
    assert spoken == renderer.prompt(messages({"role": "assistant", "content": "sorry: no"}))


def test_a_message_without_content_is_empty(renderer, with_template, encode):
    assert renderer.prompt(messages({"role": "assistant"})) == encode("<s>[tell]</s>[tell]")
    # a template may take for granted that there is a text
    called = {"role": "assistant", "tool_calls": [CALL]}
    assert with_template(FORGETS_REASONING).prompt(messages(called)) == encode("<s>[tell]add</s>[tell]")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f"}},
    ],
    ids=lambda part: part["type"],
)
def test_what_is_not_text_is_refused_by_its_type(renderer, end, part):
    looked = user([{"type": "text", "text": "see"}, part])
    with pytest.raises(RenderingError, match=part["type"]):
        renderer.prompt(messages(looked))
    with pytest.raises(RenderingError, match=part["type"]):
        sequence_of(renderer, history(looked, choice([40, end])))


def test_the_text_of_an_answer_is_without_its_end_of_turn(renderer, encode, end):
    assert renderer.text([*encode("the fox"), end]) == "the fox"


def test_the_bytes_of_the_tokens_of_a_text_are_the_bytes_of_the_text(renderer, encode):
    text = "the fox says: déjà vu, 5 €\n\t\N{FOX FACE}"
    assert b"".join(bytes(renderer.token(i)[1]) for i in encode(text)) == text.encode()


def test_a_whole_token_has_its_own_text_special_ones_too(renderer, encode, end):
    assert renderer.token(encode(" fox")[0])[0].startswith(" ")
    assert renderer.token(end) == ("</s>", list(b"</s>"))


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[9].content.x }}",
        "{% for a in 5 %}{% endfor %}",
        "{% for k, v in messages[0].content | items %}{% endfor %}",
        "{{ missing() }}",
        "{% if %}",
    ],
)
def test_a_template_that_fails_in_any_way_refuses_the_conversation(with_template, template):
    with pytest.raises(RenderingError, match="the chat template refuses this conversation"):
        with_template(template).prompt([UserMessage(role="user", content="a")])


@pytest.mark.parametrize(
    "template",
    [
        "\nToday: {{ strftime_now('%Y-%m-%d, %-d %b %y, %A, 100%%') }}\n{{ messages[0].content }}",
        "{% macro today() %}{{ strftime_now('%d.%m.%Y') }}{% endmacro %}\n{{ today() }} {{ messages[0].content }}",
        "{% if not date_string is defined %}{% if strftime_now is defined %}{% set date_string = strftime_now('%j') %}"
        "{% else %}{% set date_string = '0' %}{% endif %}{% endif %}{{ date_string }} {{ messages[0].content }}",
    ],
    ids=["plain", "in a macro", "as Llama 3.2"],
)
def test_a_template_that_prints_the_date_gives_the_same_prompt_on_another_day(with_template, monkeypatch, template):
    from transformers.utils import chat_template_utils

    class Clock(datetime):
        day = DATE

        @classmethod
        def now(cls, tz=None):
            return cls.day

    monkeypatch.setattr(chat_template_utils, "datetime", Clock)
    renderer, another = with_template(template), with_template(template, day=date(2025, 1, 31))
    as_transformers_prints_it = renderer._tokenizer.apply_chat_template([user()], tokenize=False)
    assert renderer.render([user()], begin=False) == as_transformers_prints_it
    Clock.day = date(2025, 1, 31)
    assert another.render([user()], begin=False) == renderer._tokenizer.apply_chat_template([user()], tokenize=False)
    Clock.day = datetime(2027, 1, 2, 3, 4)
    assert renderer._tokenizer.apply_chat_template([user()], tokenize=False) != as_transformers_prints_it
    assert renderer.render([user()], begin=False) == as_transformers_prints_it


PARTS = "{% for m in messages %}<|start|>{{ m.role }}: {% for part in m.content %}{% if part.type == 'text' %}"
PARTS += "{{ part.text }}{% endif %}{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant: "
PARTS += "{% endif %}"


def test_a_template_that_reads_content_in_parts_alone_gets_it_so(tmp_path):
    for template in (
        PARTS,
        PARTS.replace("{{ part.text", "{{ '' + part.text").replace("if part.type == 'text'", "if part"),
    ):
        policy = policy_with(template, tmp_path / str(len(template)), ("<|end|>",))
        request = {"model": "m", "messages": [{"role": "user", "content": "what"}]}
        ids = base_of(policy).renderer().prompt(ChatRequest.model_validate(request).messages)
        assert policy.tokenizer.decode(ids) == "<|start|>user: what<|end|><|start|>assistant: "


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_message_that_a_template_drops_is_refused_by_name(tmp_path, role):
    template = "{% for m in messages %}{% if m.role != ROLE %}{{ m.content }}{% endif %}<|end|>{% endfor %}"
    policy = policy_with(template.replace("ROLE", repr(role)), tmp_path, ("<|end|>",))
    talk = [{"role": "user", "content": "what"}, {"role": "assistant", "content": "this"}]
    request = {"model": "m", "messages": [*talk, *talk[:1]]}
    path = f"messages.{['user', 'assistant'].index(role)}"
    with pytest.raises(RenderingError, match=f"{path}: this policy's chat template does not render .* {role}"):
        base_of(policy).renderer().prompt(ChatRequest.model_validate(request).messages)
