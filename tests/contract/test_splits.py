"""Turns that begin a new training sequence: marked by the service, counted in the lab and by the job."""

import copy
from contextlib import closing
from dataclasses import replace

import pytest

from rolloutlab.session import Session
from rolloutlab.settings import Settings

FORGETS = (
    "<s>{% for m in messages %}{% if m.role == 'assistant' %}[tell]{{ m.content.split('</think>')[-1] }}</s>"
    "{% else %}[ask]{{ m.role }} {{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[tell]<think>{% endif %}"
)
LAST_ONLY = (
    "<s>[ask]{{ messages[-1].role }} {{ messages[-1].content }}</s>{% if add_generation_prompt %}[tell]{% endif %}"
)
THREE_TURNS = "user: {{n}}\nassistant:\nuser: b\nassistant:\nuser: c"


@pytest.fixture
def lab_of(policy, start, tmp_path):
    """Opens a session whose service has the tiny policy with another chat template."""
    opened = []

    def make(template):
        tokenizer = copy.deepcopy(policy.tokenizer)
        tokenizer.chat_template = template
        ends = policy.end_ids | {*range(0, policy.vocabulary, 2)}  # so that an untrained policy ends its turns
        service = start(replace(policy, tokenizer=tokenizer, end_ids=ends))
        opened.append(Session(Settings(home=tmp_path, service=service.address), http=service.http))
        return opened[-1]

    yield make
    for session in opened:
        session.close()


def three_turns(session):
    """Four conversations of three turns, all of which train."""
    chats = session.chat("three", THREE_TURNS, over=[{"n": 1}, {"n": 2}], n=2, max_tokens=20, seed=1)
    values = iter(range(len(chats.trajectories)))
    session.reward("three", lambda answer: float(next(values) % 2), cache=False)
    return session.collection("three")


def marks(trajectory):
    return [(choice.model_extra or {}).get("continues") for choice in trajectory.choices]


@pytest.mark.parametrize(
    ("template", "why"),
    [
        pytest.param(FORGETS, "the template drops earlier reasoning", id="reasoning"),
        pytest.param(LAST_ONLY, "the template does not keep earlier turns as they were sampled", id="earlier turns"),
    ],
)
def test_a_template_that_rewrites_earlier_turns_splits_a_conversation_and_all_numbers_agree(lab_of, template, why):
    session = lab_of(template)
    chats = three_turns(session)
    complete = [t for t in chats.trajectories if len(t.choices) == 3]
    assert complete
    assert all(marks(t) == [None, False, False] for t in complete)
    check = session.check("three")
    expected = sum(len(t.choices) for t in chats.trajectories)
    assert f"4 trajectories in {expected} sequences: {why}" in repr(check).splitlines()
    assert f"in 3 sequences: {why}" in repr(check)
    assert f"in 3 sequences: {why}" in check._repr_html_()
    assert check.to_frame()["sequences"].sum() == expected
    job = session.train("three", say=lambda _: None)
    [report] = [event.data for event in job.events() if event.type == "preflight"]
    assert (report["sequences"], report["trainable_trajectories"]) == (expected, 4)
    assert f'Sequences that they are</span> <span class="rl-value">{expected:,}<' in job._repr_html_()


def test_the_group_and_the_collection_say_how_many_sequences_a_conversation_is(lab_of):
    session = lab_of(FORGETS)
    chats = three_turns(session)
    note = "3 sequences: the template drops earlier reasoning"
    (group, *_), view = chats.groups, session.collection("three/0")
    split = [member["split"] for member in view._view.group(0)["group"]["members"]]
    assert split == [note if len(t.choices) == 3 else t.choices and split[i] for i, t in enumerate(group.trajectories)]
    assert note in split
    assert note in view._repr_html_()
    assert f"[{note}]"[:20] in repr(chats)


def test_turns_that_continue_are_marked_and_train_as_one_sequence(practice_service, tmp_path):
    with closing(Session(Settings(home=tmp_path, service=practice_service.address), http=practice_service.http)) as lab:
        assert_one_sequence_each(lab)


def assert_one_sequence_each(session):
    chats = three_turns(session)
    assert any(len(t.choices) == 3 for t in chats.trajectories)
    assert all(marks(t) == [None, True, True][: len(t.choices)] for t in chats.trajectories)
    check = session.check("three")
    assert "sequences:" not in repr(check)
    assert set(check.to_frame()["sequences"]) == {1}
    job = session.train("three", say=lambda _: None)
    [report] = [event.data for event in job.events() if event.type == "preflight"]
    assert report["sequences"] == report["trainable_trajectories"] == 4


def test_a_stream_has_the_mark_in_its_last_chunk(policy, start):
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.chat_template = LAST_ONLY
    service = start(replace(policy, tokenizer=tokenizer))
    [choice] = service.chat(seed=1, max_tokens=4).choices
    ids = [token.token_id for token in choice.sampled_tokens()]
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": choice.message.content, "token_ids": ids},
        {"role": "user", "content": "more"},
    ]
    chunks = service.stream(messages=messages)
    ended = [each for chunk in chunks for each in chunk.choices if each.finish_reason]
    assert [each.model_extra["continues"] for each in ended] == [False]
    [whole] = service.chat(messages=messages).choices
    assert whole.model_extra["continues"] is False


def test_a_request_that_begins_with_a_sampled_turn_is_answered_as_before(service):
    [choice] = service.chat(seed=1, max_tokens=4).choices
    ids = [token.token_id for token in choice.sampled_tokens()]
    begun = {"role": "assistant", "content": choice.message.content, "token_ids": ids}
    [after] = service.chat(messages=[begun, {"role": "user", "content": "more"}]).choices
    assert "continues" not in after.model_extra
