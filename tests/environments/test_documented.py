"""The snippets of docs/environments.md, as a newcomer types them one after the other."""

import json
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"
BEGINNING = PAGE.read_text().partition("## Rewards and ends")[0]
SNIPPETS = re.findall(r"^```(?:python)?\n(.*?)^```$", BEGINNING, re.MULTILINE | re.DOTALL)


def turned(digit):
    function = {"name": "turn", "arguments": json.dumps({"digit": digit})}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


@pytest.fixture
def typed(notebook, policy):
    """The cells of the page, with a policy that always says 7, and in the safe turns to 1 and to 2."""
    policy.answer = lambda messages: (
        turned(1 if len(messages) < 2 else 2) if messages[0]["content"] == "Open the safe." else "7"
    )
    return {snippet.partition("\n")[0].partition(" -")[0]: notebook.run(snippet) for snippet in SNIPPETS}


def test_every_snippet_up_to_the_rewards_runs(typed, notebook):
    guessed = {t.row["target"]: (t.reward, t.turn_rewards) for t in typed["%%chat guess"].trajectories}
    assert guessed[7] == (1.0, [1.0])
    assert guessed[8] == (pytest.approx(-0.8), [-0.1] * 8)
    assert [t.episode_end for t in typed["%%chat safe"].trajectories] == ["done"] * 8
    assert [t.turn_rewards for t in typed["%%chat safe"].trajectories] == [[0.0, 1.0]] * 8
    short = notebook.run("%%chat short --over targets --env guess\n")
    assert [t.reward for t in short.trajectories][5:8] == [pytest.approx(-0.7), 1.0, pytest.approx(-0.7)]
    dry = notebook.run("%%chat guess --dry-run --env GuessNumber --over targets\nsystem: Answer with one number.")
    assert "Guess a number from 1 to 20." in repr(dry)
