"""Episodes: one instance of an environment, its calls in order in one thread, each within its time."""

import asyncio

from rolloutlab import Step
from rolloutlab.environments.episode import Episode
from rolloutlab.environments.source import source_of


class Echo:
    def __init__(self, row):
        self.row = row

    def reset(self, seed):
        return f"{self.row.get('word', 'hi')} {seed}"

    def step(self, answer):
        return Step(f"{answer}?", 0.5, done=answer == "bye")


def test_a_class_is_made_reset_and_stepped():
    async def play():
        episode = Episode(source_of(Echo), {"word": "hello"}, 7)
        first = await episode.begin()
        turns = [await episode.step("so"), await episode.step("bye")]
        await episode.close()
        return first, turns

    (first,), turns = asyncio.run(play())
    assert first.content == "hello 7"
    assert [(turn.messages[0].content, turn.reward, turn.done) for turn in turns] == [
        ("so?", 0.5, False), ("bye?", 0.5, True),
    ]  # fmt: skip
