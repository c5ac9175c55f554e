"""Groups as they are read in a browser: compared, ranked by keyboard, scored, token by token, however long they are."""

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from rolloutlab.api.wire.chat import Choice, SystemMessage, ToolMessage, UserMessage
from rolloutlab.session import Session
from rolloutlab.store.models import NewGroup, Score
from tests.labs import lab_with

pytestmark = [pytest.mark.process, pytest.mark.parametrize("front_end", ["lab"])]
HOSTILE = "<script>window.harmed = true</script><img src=x onerror='window.harmed = true'> \x1b[31m \u202eabc"


def said(answer: str | None, finish_reason: str = "stop", **message: Any) -> Choice:
    """A completion with a token per word; the logprob of each is one below that of the word before."""
    words = (answer or "call").split(" ")[:3000]
    texts = [words[0], *(f" {word}" for word in words[1:]), "<end>"]
    top = [{"token": "Oslo", "logprob": -0.25}]
    content = [{"token": text, "logprob": -i % 4 - 0.5, "top_logprobs": top} for i, text in enumerate(texts)]
    told = {"role": "assistant", "content": answer, **message}
    record = {"finish_reason": finish_reason, "index": 0, "message": told, "logprobs": {"content": content}}
    return Choice.model_validate(record)


@pytest.fixture
def put(lab: Session, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Puts answers, or the items of conversations, into the groups of a new collection; its name."""

    def put(*groups: list[Any]) -> str:
        name = request.node.originalname
        prompt = [SystemMessage(role="system", content="Be brief."), UserMessage(role="user", content="Capital?")]
        lab_with(lab.store, *groups, name=name, prompts=[NewGroup(prompt, {}) for _ in groups], make=said)
        return name

    return put


def show(notebook: Any, name: str) -> Locator:
    """The view of a collection or group, in a notebook."""
    notebook.run("import rolloutlab; lab = rolloutlab.lab()")
    shown = notebook.run(f"lab.collection({name!r})").locator(".rl-view-groups")
    expect(shown.get_by_role("article")).not_to_have_count(0)
    return shown


def rewards(lab: Session, name: str) -> list[float | None]:
    return [trajectory.reward for trajectory in lab.collection(name).trajectories]


MARKDOWN = """# Plan

1. **Bold** `code` <b>tag</b> [site](https://a.example/x) ![pic](https://a.example/p.png)
2. a & b

```python
print("<i>")
```

| a | b |
|---|---|
| 1 | x<script>window.harmed = true</script> |
"""


def test_answers_are_shown_as_markdown_on_demand_and_nothing_in_them_loads(notebook, lab, put):
    shown = show(notebook, f"{put([MARKDOWN, 'Lyon **is** it'])}/0")
    asked = []
    notebook.page.on("request", lambda request: asked.append(request.url))
    cards = shown.get_by_role("article")
    expect(cards.first).to_contain_text("# Plan")
    cards.first.focus()
    notebook.page.keyboard.press("m")
    expect(cards.first.locator(".rl-heading")).to_have_text("Plan")
    expect(cards.first.locator("ol > li")).to_have_count(2)
    expect(cards.first.locator("li").first).to_have_text(
        "Bold code <b>tag</b> site (https://a.example/x) pic (https://a.example/p.png)"
    )
    expect(cards.first.locator("li").nth(1)).to_have_text("a & b")
    expect(cards.first.locator("pre code")).to_have_text('print("<i>")')
    expect(cards.first.locator("td").nth(1)).to_have_text("x<script>window.harmed = true</script>")
    expect(cards.nth(1).locator("b", has_text="is")).to_be_visible()
    expect(cards.locator("a, img, script, i")).to_have_count(cards.locator("header i").count())
    assert not notebook.page.evaluate("window.harmed")
    assert not [url for url in asked if "a.example" in url]
    notebook.screenshot("group-markdown")
    notebook.page.keyboard.press("t")
    expect(shown.get_by_role("button", name="Markdown")).to_have_attribute("aria-pressed", "false")
    notebook.page.keyboard.press("t")
    expect(cards.first).to_contain_text("# Plan")


def test_the_figures_follow_what_another_cell_changes_in_any_group(notebook, lab, put):
    name = put(["Paris", "Lyon"], ["Rome", "Nice"])
    lab.rewards(name).set([f"{name}/0/0", f"{name}/1/0"], 1)
    shown = show(notebook, name)
    expect(shown.locator(".rl-band")).to_contain_text("1")
    notebook.run(f"lab.rewards('{name}').set('{name}/1/1', 9)")
    expect(shown.locator(".rl-band")).to_contain_text("3.67")


def test_a_group_is_ranked_by_keyboard_and_the_ranking_undone(notebook, lab, put):
    name = put(["Paris", "Lyon", "Nice", "Lille"])
    shown = show(notebook, f"{name}/0")
    cards, press = shown.get_by_role("article"), notebook.page.keyboard.press
    cards.first.focus()
    for key in ("r", "2", "ArrowRight", "2", "ArrowRight", "1"):
        press(key)
    expect(cards.nth(2)).to_contain_text("place 1 → 1")
    expect(cards.nth(0)).to_contain_text("place 2 → 0.25")
    expect(cards.nth(3)).to_contain_text("no place")
    expect(shown).to_contain_text("best 1, worst 0, evenly spaced; ties share the mean of their places")
    assert rewards(lab, name) == [None] * 4
    press("Enter")
    expect(shown.get_by_role("status")).to_have_text(f"given by hand: 3 rewards in {name}/0")
    assert rewards(lab, name) == [0.25, 0.25, 1.0, None]
    assert {trajectory.source for trajectory in lab.collection(name).trajectories[:3]} == {"hand"}
    advantages = lab.collection(f"{name}/0").to_frame()["advantage"]
    expect(cards.nth(2)).to_have_attribute("aria-label", f"completion 2, reward 1, advantage +{advantages.iloc[2]:.2f}")
    press("u")
    expect(shown.get_by_role("status")).to_have_text(f"taken back: 3 rewards in {name}/0")
    assert rewards(lab, name) == [None] * 4
    press("r")
    press("Space")
    press("Escape")
    expect(cards.nth(2)).not_to_contain_text("place")
    assert rewards(lab, name) == [None] * 4


def test_a_reward_is_typed_on_a_card_and_what_is_no_number_is_told(notebook, lab, put):
    name = put(["Paris", "Lyon"])
    shown = show(notebook, name)
    keyboard = notebook.page.keyboard
    shown.get_by_role("article").nth(1).focus()
    keyboard.press("e")
    for typed in ("much", "0x10"):
        keyboard.type(typed)
        keyboard.press("Enter")
        told = f"the reward of {name}/0/1 is '{typed}', which is no finite number → a number such as 0.5"
        expect(shown.get_by_role("status")).to_have_text(told)
        expect(shown.get_by_label("reward of completion 1")).to_have_attribute("aria-invalid", "true")
        keyboard.press("Control+a")
    keyboard.type("-0.5")
    keyboard.press("Enter")
    expect(shown.get_by_role("button", name="reward -0.5, edit")).to_be_visible()
    expect(shown.get_by_role("article").nth(1)).to_be_focused()
    assert rewards(lab, name) == [None, -0.5]
    assert notebook.page.locator(".jp-Notebook .jp-Cell").count() == 3, "no key went to the notebook"


@pytest.mark.parametrize("leave", ["Escape", "click"])
def test_a_typed_reward_that_is_left_without_enter_changes_nothing(notebook, lab, put, leave):
    name = put(["Paris", "Lyon"])
    shown = show(notebook, name)
    notebook.run(f"_ = lab.rewards({name!r}).set('{name}/0/1', 0.5)")
    shown.get_by_role("button", name="reward 0.5, edit").click()
    notebook.page.keyboard.type("7")
    if leave == "click":
        shown.get_by_role("region", name="prompt").click()
    else:
        notebook.page.keyboard.press("Escape")
    expect(shown.get_by_label("reward of completion 1")).to_have_count(0)
    expect(shown.get_by_role("button", name="reward 0.5, edit")).to_be_visible()
    assert rewards(lab, name) == [None, 0.5]


def test_a_reward_that_is_given_elsewhere_shows_in_the_view(notebook, lab, put):
    name = put(["Paris", "Lyon"])
    shown = show(notebook, name)
    notebook.run(f"_ = lab.rewards({name!r}).set('{name}/0/0', 1.0)")
    expect(shown.get_by_role("button", name="reward 1, edit")).to_be_visible()
    notebook.run(f"_ = lab.reward({name!r}, lambda trajectory, answer, messages, row: 0.25)")
    expect(shown.get_by_role("button", name="reward 0.25, edit")).to_be_visible()
    notebook.reload()
    expect(shown.get_by_role("button", name="reward 0.25, edit")).to_be_visible()


def test_the_words_that_differ_from_the_best_are_marked(notebook, lab, put):
    name = put(["the quick brown fox", "the slow brown fox", "the quick brown fox jumps"])
    lab.reward(
        name, lambda trajectory, answer, messages, row: float(answer.endswith("brown fox") and "quick" in answer)
    )
    shown = show(notebook, name)
    shown.get_by_label("compare with").select_option("best")
    second, third = shown.get_by_role("article").nth(1), shown.get_by_role("article").nth(2)
    expect(second.locator("del")).to_have_text("quick")
    expect(second.locator("ins")).to_have_text("slow")
    expect(third.locator("ins")).to_have_text(" jumps")
    notebook.screenshot("group-differences", shown)
    shown.get_by_label("compare with").select_option("")
    expect(shown.locator("ins, del")).to_have_count(0)


def test_tokens_say_how_likely_they_were(notebook, put):
    shown = show(notebook, put(["Paris it is"]))
    shown.get_by_role("article").first.focus()
    notebook.page.keyboard.press("t")
    told = "“Paris” · logprob -0.5 · probability 60.7% · rank 2 · instead: “Oslo” 77.9%"
    expect(shown.get_by_role("img", name=told)).to_have_text("Paris")
    expect(shown.get_by_role("img", name="no part of the text")).to_have_text("<end>")
    notebook.screenshot("group-tokens", shown)
    notebook.page.keyboard.press("t")
    expect(shown.get_by_role("article").first).to_contain_text("Paris it is")


def test_the_gap_to_the_newest_checkpoint_is_asked_of_the_service(notebook, lab):
    lab.chat("gap", "Respond with yes or no.", n=2, max_tokens=4, seed=1)
    shown = show(notebook, "gap")
    shown.get_by_role("button", name="Tokens", exact=True).click()
    shown.get_by_role("button", name="Gap to the newest checkpoint").click()
    expect(shown.get_by_role("status")).to_contain_text("gap to lab/practice@")
    expect(shown.locator(".rl-tokens [title*='now +0'], .rl-tokens [title*='now -0']")).not_to_have_count(0)


def test_turns_tools_and_unusual_ends_are_told_in_words(notebook, put):
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"place": "Oslo"}'}}
    calling = said(None, "tool_calls", tool_calls=[call])
    told = [calling, ToolMessage(role="tool", content="A city.", tool_call_id="1"), said("Oslo")]
    shown = show(notebook, put([told, [said("Par", "length")]]))
    first, second = shown.get_by_role("article").all()
    first.get_by_text('look({"place": "Oslo"})').click()
    expect(first.locator("details")).to_contain_text("result")
    expect(second).to_contain_text("cut off by max_tokens")
    expect(shown.get_by_role("region", name="prompt")).to_contain_text("Be brief.")


def test_branches_are_folded_where_they_leave_and_open_one_by_one(notebook, lab):
    prompt, ask = UserMessage(role="user", content="Capital?"), lambda text: {"role": "user", "content": text}
    before = [prompt.to_wire(), {"role": "assistant", "content": "Paris"}]
    right = [*before, ask("right"), said(HOSTILE).to_wire()]
    again = [*before, ask("right"), {"role": "assistant", "content": HOSTILE}, ask("again"), said("Nice").to_wire()]
    extra = {"additional_histories": [{"messages_and_choices": each} for each in (right, again, [ask("a task")])]}
    items = [said("Paris"), UserMessage(role="user", content="left"), said("Lyon")]
    prompts = [NewGroup([prompt], {})]
    lab_with(lab.store, [items], name="branches", prompts=prompts, make=said, extra=extra)
    card = show(notebook, "branches/0").get_by_role("article")
    expect(card).to_contain_text("Parishistory 1, a branch after answer 1 of the main history: 1 answer")
    expect(card).not_to_contain_text("history 2")
    card.get_by_text("history 1, a branch").click()
    expect(card).to_contain_text("⟨202e⟩abc")
    card.get_by_text("history 2, a branch after answer 2 of history 1").click()
    expect(card).to_contain_text("Nice")
    card.get_by_text("history 3, on its own").click()
    expect(card).to_contain_text("a task")
    assert notebook.page.evaluate("window.harmed") is None
    card.focus()
    notebook.page.keyboard.press("t")
    expect(card.locator(".rl-tokens .rl-token")).not_to_have_count(0)
    expect(card.get_by_text("history 1, a branch")).to_be_visible()


def test_hostile_text_is_only_seen(notebook, put):
    call = {"id": "1", "type": "function", "function": {"name": HOSTILE, "arguments": HOSTILE}}
    told = [said(HOSTILE, tool_calls=[call]), ToolMessage(role="tool", content=HOSTILE, tool_call_id="1")]
    shown = show(notebook, put([told, HOSTILE + " more"]))
    shown.get_by_label("compare with").select_option("0")
    expect(shown.locator("ins")).not_to_have_count(0)
    shown.get_by_role("button", name="Tokens", exact=True).click()
    expect(shown.locator(".rl-token")).not_to_have_count(0)
    expect(shown.get_by_role("article").nth(1)).to_contain_text("⟨202e⟩abc")
    assert shown.locator("script, .rl-card img").count() == 0
    assert notebook.page.evaluate("window.harmed") is None


def test_the_groups_of_a_collection_are_read_one_after_the_other(notebook, put):
    name = put(["Paris"], ["Lima"], ["Quito"])
    shown = show(notebook, name)
    expect(shown).to_contain_text("1 of 3")
    shown.get_by_role("button", name="next group").click()
    expect(shown.get_by_role("article")).to_contain_text("Lima")
    expect(shown.get_by_role("article")).to_be_focused()
    notebook.page.keyboard.press("n")
    expect(shown.get_by_role("article")).to_contain_text("Quito")
    expect(shown.get_by_role("button", name="next group")).to_be_disabled()
    shown.get_by_label("group", exact=True).click(click_count=3)
    notebook.page.keyboard.type("0\n")
    expect(shown.get_by_role("article")).to_contain_text("Paris")


def test_the_whole_collection_stands_above_and_a_bar_opens_its_group(notebook, lab, put):
    name = put(["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"])
    given = [1.0, 1.0, 0.4, 0.6, 0.0, 1.0, 0.0, 0.0]
    for trajectory, reward in zip(lab.collection(name).trajectories, given, strict=True):
        lab.rewards(name).set(trajectory.name, reward)
    shown = show(notebook, name)
    expect(shown).to_contain_text(re.compile(r"Groups that train\s*2\s*of 4"))
    expect(shown.get_by_role("article").first).to_contain_text("e")
    expect(shown).to_contain_text("1 of 2 that train")
    bars = shown.locator(".rl-groups-bar")
    assert [bar.get_attribute("data-position") for bar in bars.all()] == ["2", "1", "3", "0"]
    bars.nth(3).click()
    expect(shown.get_by_role("article").first).to_contain_text("a")
    expect(bars.nth(3)).to_have_attribute("aria-current", "true")
    notebook.page.keyboard.press("e")
    notebook.page.keyboard.type("0\n")
    expect(shown).to_contain_text(re.compile(r"Groups that train\s*3\s*of 4"))
    shown.get_by_label("order of the groups").select_option("sampled")
    shown.get_by_role("button", name="next group").click()
    expect(shown.get_by_role("article").first).to_contain_text("c")


def test_equal_completions_are_one_card_and_are_given_one_reward(notebook, lab, put):
    name = put(["Paris", "Lyon", "Paris", "Paris"])
    shown = show(notebook, f"{name}/0")
    cards, keyboard = shown.get_by_role("article"), notebook.page.keyboard
    expect(cards).to_have_count(2)
    expect(cards.first).to_contain_text("\N{MULTIPLICATION SIGN}3#0 #2 #3")
    cards.first.focus()
    keyboard.press("e")
    keyboard.type("0.5\n")
    expect(shown.get_by_role("button", name="reward 0.5, edit")).to_be_visible()
    assert rewards(lab, name) == [0.5, None, 0.5, 0.5]
    for key in ("r", "2", "ArrowRight", "1", "Enter"):
        keyboard.press(key)
    expect(shown.get_by_role("status")).to_have_text(f"given by hand: 4 rewards in {name}/0")
    assert rewards(lab, name) == [pytest.approx(1 / 3), 1.0, pytest.approx(1 / 3), pytest.approx(1 / 3)]
    notebook.run(f"_ = lab.rewards({name!r}).set('{name}/0/2', 0.9)")
    expect(cards).to_have_count(3)
    expect(cards.first).to_contain_text("\N{MULTIPLICATION SIGN}2#0 #3")


def test_one_that_was_scored_by_hand_is_on_the_card_of_its_equals_which_says_so(notebook, lab, put):
    name = put(["Paris", "Lyon", "Paris", "Paris"])
    given = zip(lab.collection(name).trajectories, [1, 0, 0.5, 1], strict=True)
    lab.store.rewards.give([Score(trajectory, reward) for trajectory, reward in given], "function")
    shown = show(notebook, f"{name}/0")
    cards = shown.get_by_role("article")
    expect(cards).to_have_count(3)
    notebook.run(f"_ = lab.rewards({name!r}).set('{name}/0/2', 1)")
    expect(cards).to_have_count(2)
    expect(cards.first).to_contain_text("\N{MULTIPLICATION SIGN}3#0 #2 #3")
    expect(cards.first).to_contain_text("1 by hand, was 0.5")


def test_of_64_long_completions_only_what_is_near_is_in_the_page(notebook, put):
    words = random.Random(1)
    long = [" ".join(words.choice(["river", "city", "long", "works"]) for _ in range(4000)) for _ in range(64)]
    shown = show(notebook, put(long))
    strip, cards = shown.get_by_role("list", name="completions"), shown.get_by_role("article")
    assert (len(long[0]) > 15_000, cards.count()) == (True, 64)
    for i in range(0, 64, 4):
        cards.nth(i).scroll_into_view_if_needed()
        expect(cards.nth(i).locator(".rl-text")).to_contain_text(long[i][:200])
        assert strip.evaluate("element => element.textContent.length") < 15 * len(long[0])
        assert strip.evaluate("element => element.querySelectorAll('*').length") < 64 * 30
    expect(cards.first.locator(".rl-text")).to_have_count(0)


def test_a_completion_of_a_megabyte_is_folded_and_shown_whole_on_demand(notebook, put):
    lines = "".join(f"line {i} of many\n" for i in range(60_000))
    shown = show(notebook, put([lines]))
    body = shown.locator(".rl-body")
    assert len(body.inner_text()) < 25_000
    body.get_by_role("button", name="show all (1.1 MB)").click()
    expect(body.get_by_role("button")).to_have_count(0)
    whole = body.locator(".rl-text").evaluate("element => element.textContent.replaceAll('\\n', '').length")
    assert whole == len(lines.replace("\n", ""))


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_every_text_stands_out_from_what_it_stands_on(notebook, lab, put, theme):
    name = put([[said("Paris it is", "length")], "Lyon it is", "Nice"])
    shown = show(notebook, f"{name}/0")
    notebook.theme(theme)
    shown.get_by_label("compare with").select_option("0")
    expect(shown.locator("del")).not_to_have_count(0)
    shown.get_by_role("button", name="Rank").click()
    shown.get_by_role("article").nth(1).press("1")
    shown.get_by_role("button", name="no reward, edit").first.click()
    notebook.page.keyboard.type("much\n")
    expect(shown.get_by_role("status")).to_contain_text("no finite number")
    assert notebook.faint(shown) == []


def test_it_is_as_readable_in_the_dark_and_in_a_narrow_window(notebook, lab, put):
    name = put(["Paris " * 30, "Lyon " * 30, "Nice " * 30])
    lab.collection(f"{name}/0").rank([0, [1, 2]])
    shown = show(notebook, name)
    wide = [card.bounding_box()["y"] for card in shown.get_by_role("article").all()]
    assert len(set(wide)) == 1, "side by side"
    notebook.theme("JupyterLab Dark")
    notebook.screenshot("group-dark", shown)
    notebook.narrow()
    first, second, _ = shown.get_by_role("article").all()
    expect(first).to_be_visible()
    assert second.bounding_box()["y"] >= first.bounding_box()["y"] + first.bounding_box()["height"], (
        "one below the other"
    )
    notebook.screenshot("group-narrow")


def thought(reasoning: str, answer: str, **properties: Any) -> Choice:
    """A completion whose reasoning is apart from its answer. continues: false where its prompt began anew."""
    choice = said(answer, reasoning_content=reasoning)
    return Choice.model_validate({**choice.to_wire(), **properties})


def test_reasoning_is_folded_and_a_split_is_named_by_mouse_and_by_keyboard(notebook, lab, put):
    first, second = "France, so its capital.", "Now Italy: " + "the seat of its government is Rome. " * 12
    again = UserMessage(role="user", content="And of Italy?")
    split = [thought(first, "Paris"), again, thought(second, "Rome", continues=False)]
    kept = [thought(first, "Lyon"), again, thought(second, "Milan")]
    shown = show(notebook, put([split, kept, [said("Nice"), again, said("Oslo")], [thought(first, "Paris")]]))
    cards = shown.get_by_role("article")
    expect(cards.nth(0)).to_contain_text("2 sequences: the template drops earlier reasoning")
    for whole in (1, 2, 3):
        expect(cards.nth(whole)).not_to_contain_text("sequences")
    folds = cards.nth(0).get_by_text("reasoning", exact=True)
    expect(folds).to_have_count(2)
    expect(cards.nth(2).get_by_text("reasoning", exact=True)).to_have_count(0)
    expect(cards.nth(3).get_by_text("reasoning", exact=True)).to_have_count(1)
    expect(cards.nth(0)).to_contain_text("Rome")
    expect(cards.nth(0)).not_to_contain_text(first)
    folds.nth(0).click()
    expect(cards.nth(0).get_by_text(first, exact=True)).to_be_visible()
    folds.nth(1).focus()
    notebook.page.keyboard.press("Enter")
    expect(cards.nth(0).get_by_text("the seat of its government")).to_be_visible()
    notebook.page.keyboard.press("Enter")
    expect(cards.nth(0).get_by_text("the seat of its government")).to_be_hidden()
    notebook.page.keyboard.press("Enter")
    notebook.narrow(900)
    assert shown.evaluate("element => element.scrollWidth - element.clientWidth") <= 0, "nothing is wider than the view"
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        notebook.theme(theme)
        assert notebook.faint(shown) == []
        notebook.screenshot(f"group-reasoning-{theme.split()[1].lower()}", shown)
    assert notebook.errors() == []
