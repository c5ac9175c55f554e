"""Reasoning in a format that is not read: the service says so at its start, and marks the answers that have it."""

import pytest

from rolloutlab.api.embedded import Embedded
from rolloutlab.api.wire.reasoning import is_unread_mark
from rolloutlab.policy.decode import Completion, CompletionRequest
from rolloutlab.policy.model import base_of
from rolloutlab.policy.parsing import CompletionParser
from rolloutlab.service.endpoints.completion_format import CompletionOptions, Writer
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from rolloutlab.widgets.group import ConversationTexts, conversation
from tests.conftest import make_service
from tests.labs import completion, lab_with
from tests.policies import policy_with
from tests.policy.test_families import DROPS, HARMONY, OPENS

TURN = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|A|>ANSWER<|over|>{% else %}<|U|>{{ m.content }}{% endif %}"
)
TURN += "{% endfor %}{% if add_generation_prompt %}<|A|>{% endif %}"
FIELD = "{% if m.reasoning_content %}OPEN{{ m.reasoning_content }}CLOSE{% endif %}{{ m.content }}"
PLAIN = TURN.replace("ANSWER", "{{ m.content }}")


def writes(opening, closing):
    return TURN.replace("ANSWER", FIELD.replace("OPEN", opening).replace("CLOSE", closing))


UNREAD = {
    "a channel of Gemma 4": (writes("<|channel>thought\n", "<channel|>"), (), "<|channel>thought"),
    "a mark of Mistral": (writes("[THINK]", "[/THINK]"), (), "[THINK]"),
    "a mark of Seed": (writes("<seed:think>", "</seed:think>"), (), "<seed:think>"),
    "words": (writes("Thought: ", "\nAnswer: "), (), "Thought:"),
    "a recipient": (writes(" to=self<|message|>", "<|eom|><|A|> to=user<|message|>"), (), "to=self<|message|>"),
    "tokens of the vocabulary alone": (PLAIN, ("<|START_THINKING|>", "<|END_THINKING|>"), "<|START_THINKING|>"),
    "a generation prompt": (PLAIN.replace("%}<|A|>{% endif", "%}<|A|><thought>{% endif"), (), "<thought>"),
}
READ = {
    "a field": DROPS.strip(),
    "a prompt that opens it": OPENS.strip(),
    "harmony": HARMONY.strip(),
    "tight marks": writes("<think>", "</think>"),
    "marks around the answer (Granite)": TURN.replace(
        "ANSWER", "<think>{{ m.reasoning_content or '' }}</think><response>{{ m.content }}</response>"
    ),
    "no reasoning": PLAIN,
}


@pytest.fixture(scope="module")
def policy_of(tmp_path_factory):
    """Makes the policy of a template once; special: further tokens of its vocabulary."""
    policies = {}

    def make(template, special=()):
        ends = ("<|return|>", "<|call|>") if "<|return|>" in template else ("<|over|>",)
        if (template, special) not in policies:
            folder = tmp_path_factory.mktemp("policies") / "tiny"
            policies[template, special] = policy_with(template + f"{{# {' '.join(special)} #}}", folder, ends)
        return policies[template, special]

    return make


def answered(policy, text):
    """The Choice of a sampled text, as the service writes it."""
    base = base_of(policy)
    parser = CompletionParser(policy.tokenizer, base.renderer(), policy.end_ids)
    ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    request = CompletionRequest((1, 2), max_tokens=99)
    row = Completion(request, tokens=ids, logprobs=[-1.0] * len(ids), finish="stop")
    written = Writer(base.renderer(), parser).completion(CompletionOptions("m", None, 0, (request,)), [row])
    return written.choices[0]


@pytest.mark.parametrize("case", UNREAD)
def test_a_service_says_at_its_start_which_reasoning_of_its_policy_it_does_not_read(policy_of, case):
    template, special, mark = UNREAD[case]
    [note] = base_of(policy_of(template, special)).notes()
    assert note == f"tiny may write reasoning with {mark!r}, which is not read: it is part of the answer"


@pytest.mark.parametrize("case", READ)
def test_of_a_policy_whose_reasoning_is_read_nothing_is_said(policy_of, case):
    assert base_of(policy_of(READ[case])).notes() == []


@pytest.mark.parametrize("case", UNREAD)
def test_an_answer_with_reasoning_that_is_not_read_is_marked_and_another_is_not(policy_of, case):
    template, special, mark = UNREAD[case]
    policy = policy_of(template, special)
    assert answered(policy, f"{mark}hm 42<|over|>").to_wire()["unread_reasoning"] == mark
    assert "unread_reasoning" not in answered(policy, "42<|over|>").to_wire()


def test_an_answer_whose_reasoning_is_read_is_not_marked(policy_of):
    choice = answered(policy_of(READ["a field"]), "<think>\nhm\n</think>\n\n42<|over|>").to_wire()
    assert choice["message"]["reasoning_content"] == "hm"
    assert "unread_reasoning" not in choice


def test_marks_are_told_from_other_tokens():
    marks = ["<|channel>", "<channel|>", "[THINK]", "<seed:think>", "<thought>", "◁think▷", "<|START_THINKING|>"]
    assert all(map(is_unread_mark, marks))
    others = ["<think>", "</think>", "<|channel|>", "think", "<|im_end|>", "thinking", "<", "<|user|>", "[INST]", ""]
    assert not any(map(is_unread_mark, others))


@pytest.fixture
def lab(tmp_path):
    """A session without any service, on a lab with answers that have reasoning in them or not."""
    session = Session(Settings(home=tmp_path, policy="/nowhere"))
    harmony = {"role": "assistant", "content": "Lima", "reasoning_content": "hm"}
    answers = [
        completion("to=selfhmParis", unread_reasoning="to=self"),
        completion("thought\nhmParis", tokens=("<|channel>", "thought")),
        completion("Lima", tokens=("<|channel|>", "analysis"), message=harmony),
        "Lima",
    ]
    lab_with(session.store, answers, name="marked")
    yield session
    session.close()


def test_a_trajectory_knows_the_mark_of_reasoning_in_its_answer(lab):
    marks = [trajectory.unread_reasoning for trajectory in lab.collection("marked").trajectories]
    assert marks == ["to=self", "<|channel>", "", ""]


def test_views_mark_the_answers_with_reasoning_in_them(lab):
    shown = repr(lab.collection("marked"))
    assert shown.count("the answer has reasoning in it, which is not read") == 2
    [group] = lab.collection("marked").groups
    logs = [conversation(each, ConversationTexts())["logs"] for each in group.trajectories]
    assert ["which is not read (<|channel>)" in str(each) for each in logs] == [False, True, False, False]
    assert list(map(bool, logs)) == [True, True, False, False]


def test_scoring_says_how_many_answers_have_reasoning_in_them(lab, capsys):
    lab.reward("marked", lambda answer: float("Paris" in answer))
    note = "the answers of 2 trajectories contain reasoning, which is not read (to=self, <|channel>)"
    assert note in capsys.readouterr().out


def test_a_service_tells_it_when_asked_and_a_first_cell_says_it_once(policy_of, tmp_path, monkeypatch, capsys):
    template, special, mark = UNREAD["a channel of Gemma 4"]
    service = make_service(policy_of(template, special), tmp_path / "service")
    note = f"tiny may write reasoning with {mark!r}, which is not read: it is part of the answer"
    assert service.call("GET", "/v1/preview/engine")["notes"] == [note]
    monkeypatch.setattr(Embedded, "address", lambda *_, **__: service.address)
    monkeypatch.setattr(Embedded, "running", lambda _: service.address)
    monkeypatch.setattr(Embedded, "other_policy", lambda _: None)
    session = Session(Settings(home=tmp_path, policy="tiny"), http=service.http)
    assert note in repr(session.connect())
    capsys.readouterr()
    for times in (1, 0):
        session.chat("words", "hello", n=1, max_tokens=2)
        assert capsys.readouterr().out.count(note) == times
    session.close()
    service.stop()
