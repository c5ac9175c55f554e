"""What was captured trains as it was sampled: the importance ratio of the first step is 1 on every turn."""

import asyncio
import itertools
import random
from contextlib import closing

import pytest

from rolloutlab.session import Session
from rolloutlab.settings import Settings

QUESTIONS = ("a {}", "b", "c", "d")


def user(text):
    return {"role": "user", "content": text}


def plain(message):
    """A message as most frameworks send it back."""
    return {"role": "assistant", "content": message.content or ""}


async def talks(row, client):
    """Four turns, with sub-agents and with branches after each answer, all sent back as plain text."""
    random_, messages = random.Random(row["n"]), []
    for question in QUESTIONS:
        messages.append(user(question.format(row["n"])))
        answer = await client.chat.completions.create(messages=messages, n=random_.choice([1, 2]), max_tokens=16)
        messages.append(plain(answer.choices[-1].message))
        branches = [[*messages, user(f"and {i}?")] for i in range(random_.choice([0, 2]))]
        others = [*branches, *([[user("sub-agent")]] if random_.random() < 0.5 else [])]
        await asyncio.gather(*(client.chat.completions.create(messages=each, max_tokens=8) for each in others))


def test_the_first_ratio_is_one_on_every_turn_branch_and_sub_agent(practice_service, tmp_path):
    with closing(Session(Settings(home=tmp_path, service=practice_service.address), http=practice_service.http)) as lab:
        made = lab.rollouts("talks", talks, over=[{"n": n} for n in range(4)], n=4, temperature=1.5, seed=1)
        trajectories = [trajectory for group in made.groups for trajectory in group.trajectories]
        assert sum(len(trajectory.additional) > 1 for trajectory in trajectories) > 8
        again = [
            message
            for trajectory in trajectories
            for history in trajectory.additional
            for message in history.messages_and_choices
            if getattr(message, "token_ids", None)
        ]
        assert len(again) > 30  # turns that are context in a branch
        values = iter(range(len(trajectories)))
        lab.reward("talks", lambda answer: float(next(values) % 4), cache=False)
        check = lab.check("talks").to_frame()
        job = lab.train("talks", {"learning_rate": 0.0}, say=lambda _: None).wait()
        [report] = [event.data for event in job.events() if event.type == "preflight"]
        steps = [event.data for event in job.events() if event.type == "gradient_step"]
    assert report["sequences"] == check["sequences"].sum()
    assert report["trainable_trajectories"] == len(trajectories)
    ratios = [step[name] for step in steps for name in ("ratio_mean", "ratio_max")]
    assert ratios == pytest.approx([1] * len(ratios), abs=1e-3)


async def answers(row, client):
    answer = await client.chat.completions.create(messages=[user(f"Say {row['word']}")], max_tokens=8)
    return float(row["word"] in (answer.choices[0].message.content or ""))


def test_two_checkpoints_are_compared_by_playing_the_program_again(practice_service, tmp_path):
    with closing(Session(Settings(home=tmp_path, service=practice_service.address), http=practice_service.http)) as lab:
        rows = [{"word": word} for word in ("yes", "no", "maybe", "hello")]
        lab.model("lab/compared")
        made = lab.rollouts("says", answers, over=rows, n=2, seed=1, max_tokens=6)
        values = itertools.count()
        lab.reward("says", lambda answer: float(next(values) % 2), cache=False, overwrite=True)
        lab.train("says", say=lambda _: None).wait()
        comparison = lab.compare("says", over=rows[2:], n=3)
        for step in (0, 1):
            side = lab.collection(f"compare.says.lab.compared.step{step}")
            assert [len(group.trajectories) for group in side.groups] == [3, 3]
            assert {t.step for group in side.groups for t in group.trajectories} == {step}
            assert all(t.tokens <= 6 and t.reward is not None for group in side.groups for t in group.trajectories)
        assert len(comparison.pairs) == 2
        assert made.groups[0].trajectories[0].step == 0


def test_rows_tell_the_prompts_of_a_program_apart_whatever_its_first_message_is(practice_service, tmp_path):
    async def begins(row, client):
        messages = [user("Begin."), {"role": "assistant", "content": "What?"}, user(row["word"])]
        await client.chat.completions.create(messages=messages, max_tokens=3)
        return float(row["word"] < "n")

    with closing(Session(Settings(home=tmp_path, service=practice_service.address), http=practice_service.http)) as lab:
        rows = [{"word": word} for word in ("yes", "no", "maybe", "hello")]
        lab.model("lab/apart")
        lab.rollouts("begins", begins, over=rows[:2], n=2, seed=1)
        values = itertools.count()
        lab.reward("begins", lambda answer: float(next(values) % 2), cache=False, overwrite=True)
        lab.train("begins", say=lambda _: None).wait()
        pairs = lab.compare("begins", over=rows).pairs
    assert [pair.trained for pair in pairs] == [True, True, False, False]
