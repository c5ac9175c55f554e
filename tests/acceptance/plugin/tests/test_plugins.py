"""The tests of the example, as its author runs them: `pytest`."""

import json
from pathlib import Path

import pytest

from rolloutlab.testing import EngineTests, EnvironmentTests, ReaderTests, RewardTests, SearchTests, TrackerTests


class TestGuess(EnvironmentTests):
    env = "guess:10"
    answers = [str(number) for number in range(1, 11)]


def exact(guess, gold):
    return float(guess == gold)


class TestGold(RewardTests):
    plugin = "gold"
    functions = [(exact, [1.0, 0.0])]
    row = {"target": "Paris"}


class TestDialogues(ReaderTests):
    plugin = "dialogues"
    trajectories, rewards = 2, 1

    @pytest.fixture(autouse=True)
    def written(self, tmp_path):
        self.file = tmp_path / "dialogues.jsonl"
        lines = [{"dialogue": [["2 + 2?", "4"]], "score": 1.0}, {"dialogue": [["2 + 2?", "5"], ["Sure?", "No"]]}]
        self.file.write_text("\n".join(map(json.dumps, lines)))


class TestNotes(SearchTests):
    least = 2

    @pytest.fixture(autouse=True)
    def written(self, tmp_path):
        notes = [{"id": "a", "text": "the first", "stars": 3}, {"id": "b", "text": "the second", "stars": 5}]
        (tmp_path / "notes.jsonl").write_text("\n".join(map(json.dumps, notes)))
        self.url = f"notes:{tmp_path / 'notes.jsonl'}"


class TestPages(TrackerTests):
    tracker = "pages"

    def read(self, home, run):
        page = json.loads(Path(self.line.partition(": ")[2]).read_text())
        return {int(step): numbers for step, numbers in page["steps"].items()}


class TestSharp(EngineTests):
    engine = "sharp"
    only = ["logprobs", "first ratio", "gradient: default", "resume"]
