"""Episodes of an environment as they are read in a browser: the reward of each turn, and how each episode ended."""

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from rolloutlab.session import Session

pytestmark = [pytest.mark.process, pytest.mark.parametrize("front_end", ["lab"])]
CLIMB = '''
%load_ext rolloutlab
from rolloutlab import Step

class Climb:
    """Costs a quarter for each answer but the third, which is at the top. Its row says what goes wrong before."""
    def __init__(self, row):
        self.row, self.answers = row, 0
    def reset(self, seed):
        return "You stand at the foot of a mountain. Up? Respond with yes or no."
    def step(self, answer):
        self.answers += 1
        if self.row["rope"] == "torn" and self.answers == 2:
            raise ValueError("the rope is torn")
        if self.answers == 3 and self.row["rope"] == "long":
            return Step("This is the top.", 1.0, done=True)
        return Step(f"Camp {self.answers}. Up? Respond with yes or no.", -0.25 if self.answers < 3 else 0.0)

rows = [{"rope": rope} for rope in ("long", "short", "torn")]
'''
CHAT = "%%chat {name} -n 2 --over rows --env Climb --max-turns 3 --max-tokens 48 --seed 1\nsystem: Be brief."
LOST, WON = "assistant \N{MINUS SIGN}0.25", "assistant +1"
ENDS = ["done", "done", "max turns", "max turns", "error", "error"]


@pytest.fixture
def climbed(notebook: Any, request: pytest.FixtureRequest) -> str:
    """The name of a collection of three groups of two episodes."""
    name = request.node.originalname.removeprefix("test_")[:12].strip("_")
    notebook.run(CLIMB)
    notebook.run(CHAT.format(name=name))
    return name


def first_card(shown: Locator) -> Locator:
    """The first completion there, scrolled to: JupyterLab does so only sometimes, and a view draws what is in sight."""
    card = shown.get_by_role("article").first
    card.scroll_into_view_if_needed()
    return card


def earned(where: Locator) -> list[str]:
    """The rewards beside the turns there, by the roles of the turns."""
    turns = where.locator(".rl-turn").all()
    return [
        " ".join(turn.locator(".rl-role, div:has(> b)").first.all_inner_texts()).replace("\n", " ") for turn in turns
    ]


def test_the_reward_of_each_answer_is_beside_it_and_the_end_of_the_episode_above(notebook: Any, climbed: str):
    shown = notebook.run(f"%group {climbed}/0").locator(".rl-view-groups")
    card = first_card(shown)
    expect(card.locator(".rl-turn")).to_have_count(7)
    assert earned(card) == [
        "user", LOST, "user", LOST, "user", WON, "user",
    ]  # fmt: skip
    expect(card.locator("footer span")).to_have_text(
        ["env 0.5", re.compile(r"\d+ tokens"), "3 answers", "done", "by environment"]
    )
    assert notebook.faint(shown) == []
    notebook.screenshot("episodes-group", shown)
    shown.get_by_role("button", name="Tokens").click()
    expect(card.locator(".rl-token")).not_to_have_count(0)
    assert earned(card)[1::2] == [LOST, LOST, WON]
    card = first_card(notebook.run(f"%group {climbed}/1"))
    expect(card.locator("footer .rl-odd")).to_have_text("ended after max_turns answers")
    shown = notebook.run(f"%group {climbed}/2").locator(".rl-view-groups")
    card = first_card(shown)
    expect(card.locator("footer .rl-odd")).to_have_text("ended by an error")
    expect(card).to_have_accessible_name(re.compile("would not train"))
    expect(card.locator("details")).to_contain_text("ended: Climb.step raised ValueError: the rope is torn")
    notebook.screenshot("episodes-error", shown)


def test_the_table_of_rewards_has_how_each_episode_ended(notebook: Any, lab: Session, climbed: str):
    shown = notebook.run(f"%rewards {climbed}").locator(".rl-rewards")
    ends = shown.locator(".tabulator-cell[tabulator-field='episode_end']")
    expect(ends).to_have_text(ENDS)
    expect(shown.get_by_role("columnheader", name="finish", exact=True)).to_have_count(0)
    assert notebook.faint(shown) == []
    notebook.screenshot("episodes-rewards", shown)
    shown.get_by_label("filter by ended").select_option("error")
    expect(ends).to_have_text(["error", "error"])
    grid = shown.get_by_role("grid")
    grid.focus()
    notebook.page.keyboard.press("o")
    opened = shown.get_by_label("the current trajectory")
    expect(opened).to_contain_text("ended: Climb.step raised ValueError: the rope is torn")
    assert earned(opened) == ["system", "user", LOST, "user", "assistant"]
    notebook.screenshot("episodes-opened", shown)
    assert [t.episode_end for t in lab.collection(climbed).trajectories][::2] == ["done", "max_turns", "error"]
