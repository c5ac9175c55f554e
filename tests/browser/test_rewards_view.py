"""The rewards of a collection in a browser: sorted, filtered, given by keyboard, undone, and always as the lab is."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from rolloutlab.api.wire.chat import Choice, UserMessage
from rolloutlab.session import Session
from rolloutlab.store.models import NewGroup, Ref, Score
from rolloutlab.store.scorings import Failure, NewScoring
from tests.labs import lab_with

pytestmark = pytest.mark.process

HOSTILE = "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'> \x1b[31m \u202eabc"
SCORE = """\
%%reward {name} --overwrite
return {{"length": float(len(answer)), "<i>new</i>": 1.0}}
"""
FRAME = 'print("|".join(view.to_frame().index), view.to_frame()["reward"].round(4).fillna("").tolist(), sep="\\n")'
lab_only = pytest.mark.parametrize("front_end", ["lab"])


def said(answer: str) -> Choice:
    """A completion with a token per word, of which the first hundred are kept."""
    tokens = [{"token": word, "logprob": -0.5, "top_logprobs": []} for word in answer.split()[:100]]
    message = {"role": "assistant", "content": answer}
    record = {"finish_reason": "stop", "index": 0, "message": message, "logprobs": {"content": tokens}}
    return Choice.model_validate(record)


@pytest.fixture
def put(lab: Session, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Puts answers into the groups of a new collection and scores the first of them; its name."""

    def put(*groups: list[str], rewards: list[float] = [], parts: dict[str, float] | None = None) -> str:  # noqa: B006
        name = request.node.originalname.removeprefix("test_")[:12].strip("_")
        prompt = [UserMessage(role="user", content="Capital?")]
        lab_with(lab.store, *groups, name=name, prompts=[NewGroup(prompt, {}) for _ in groups], make=said)
        give(lab, name, *rewards, **parts or {})
        return name

    return put


def give(lab: Session, name: str, *rewards: float, **parts: float) -> None:
    scored = zip(lab.collection(name).trajectories, rewards, strict=False)
    lab.store.rewards.give([Score(trajectory, reward, parts) for trajectory, reward in scored], "function")


def show(notebook: Any, name: str) -> Locator:
    """The view of a collection's rewards, which the notebook calls `view`."""
    shown = notebook.run(f"%load_ext rolloutlab\n%rewards {name} -o view").locator(".rl-rewards")
    expect(shown.get_by_role("gridcell").first).to_be_visible()
    return shown


def grid(shown: Locator) -> Locator:
    return shown.get_by_role("grid")


def row(shown: Locator, name: str) -> Locator:
    return shown.get_by_role("row").filter(has_text=name)


def column(shown: Locator, name: str) -> list[str]:
    """What the rows that are drawn show in one column, by its field."""
    return shown.locator(f".tabulator-cell[tabulator-field='{name}']").all_text_contents()


def status(shown: Locator) -> Locator:
    return shown.get_by_role("status")


def rewards(lab: Session, name: str) -> list[float | None]:
    return [trajectory.reward for trajectory in lab.collection(name).trajectories]


def cells(notebook: Any) -> int:
    return notebook.page.locator(".jp-Notebook .jp-Cell").count()


def press(notebook: Any, *keys: str) -> None:
    for key in keys:
        notebook.page.keyboard.press(key)


def test_rewards_are_given_by_keyboard_and_the_advantages_of_the_group_follow(notebook, lab, put):
    name = put(["Paris", "Lyon", "Nice"], ["Lima", "Quito"], rewards=[1, 0, 0.5, 0.5, 0.5])
    shown = show(notebook, name)
    before, count = column(shown, "advantage"), cells(notebook)
    grid(shown).focus()
    expect(row(shown, f"{name}/0/0")).to_have_class(re.compile("rl-current"))
    press(notebook, "a", "b", "d", "d", "ArrowDown", "2", ".", "5", "Enter")
    expect(status(shown)).to_have_text(f"{name}/0/1: 0 → 2.5")
    after = column(shown, "advantage")
    assert all(old != new for old, new in zip(before[:3], after[:3], strict=True))
    assert (before[3:], after[3:]) == (["equal rewards"] * 2, ["all fail"] * 2)  # 0.5 is the lowest reward now
    assert rewards(lab, name) == [1, 2.5, 0.5, 0.5, 0.5]
    told = [f"{a:+.2f}".replace("-", "\N{MINUS SIGN}") for a in lab.collection(name).to_frame()["advantage"][:3]]
    assert [text.strip() for text in after[:3]] == told
    expect(row(shown, f"{name}/0/1")).to_contain_text("hand, was 0")
    assert lab.rewards(name).history(f"{name}/0/1")[0].source == "hand"

    press(notebook, "ArrowDown", "1", "Enter")  # the edit before has moved one down already
    expect(row(shown, f"{name}/1/0")).to_contain_text(re.compile(r"1\+\d"))
    expect(shown.locator(".rl-summary")).to_contain_text("5 trajectories will train")
    assert rewards(lab, name)[3:] == [1, 0.5]
    expect(shown.get_by_role("button", name="Undo 1 reward set to 1")).to_be_visible()
    press(notebook, "u")
    expect(status(shown)).to_contain_text("(1 reward set to 1) is undone: 1 reward as before")
    expect(shown.get_by_role("button", name="Undo 1 reward set to 2.5")).to_be_visible()
    expect(row(shown, f"{name}/1/0")).to_contain_text("all fail")
    shown.get_by_role("button", name="Undo").press("Enter")
    expect(row(shown, f"{name}/0/1")).to_contain_text("function")
    assert rewards(lab, name) == [1, 0, 0.5, 0.5, 0.5]
    assert cells(notebook) == count
    notebook.screenshot("rewards", shown)


@lab_only
def test_a_row_that_no_longer_fits_the_filter_stays_is_marked_and_goes_when_it_is_applied_anew(notebook, lab, put):
    name = put(["Paris", "Lyon", "Nice"], rewards=[0, 0.25, 1])
    shown = show(notebook, name)
    shown.get_by_label("filter by reward").fill("< 0.5")
    expect(shown.locator(".rl-filters")).to_contain_text("2 of 3")
    grid(shown).focus()
    press(notebook, "1", "Enter")
    anew = shown.get_by_role("button", name="1 row no longer fits: apply anew")
    expect(row(shown, f"{name}/0/0")).to_have_class(re.compile("rl-unfit"))
    press(notebook, "u")  # it fits again
    expect(anew).to_have_count(0)
    expect(row(shown, f"{name}/0/0")).not_to_have_class(re.compile("rl-unfit"))
    press(notebook, "ArrowUp", "1", "Enter")
    anew.click()
    expect(row(shown, f"{name}/0/0")).to_have_count(0)
    expect(shown.locator(".rl-filters")).to_contain_text("1 of 3")
    expect(anew).to_have_count(0)


@lab_only
def test_a_button_puts_the_answers_with_most_influence_first(notebook, lab, put):
    name = put(["a", "b", "c", "d", "e"], rewards=[0.5, 0.5, 0.6, 0.6, -9])
    shown = show(notebook, name)
    most = shown.get_by_role("button", name="Largest |advantage| first")
    most.click()
    expect(most).to_have_attribute("aria-pressed", "true")
    expect(shown.get_by_role("row").nth(1)).to_contain_text(f"{name}/0/4")
    most.click()
    expect(most).to_have_attribute("aria-pressed", "false")
    expect(shown.get_by_role("row").nth(1)).to_contain_text(f"{name}/0/0")


@lab_only
def test_at_390_pixels_a_tap_opens_a_completion_and_a_search_wraps_it(notebook, lab, put):
    name = put([f"{'so many words ' * 12}end", "b"], rewards=[1, 0])
    shown = show(notebook, name)
    found = notebook.run(f"%search --where \"collection == '{name}'\"").locator(".rl-table:visible")
    notebook.narrow(390)
    row(shown, f"{name}/0/0").locator(".rl-trajectory").click()
    opened = shown.get_by_label("the current trajectory")
    expect(opened.get_by_text("words end")).to_be_visible()
    assert opened.evaluate("each => each.scrollWidth <= each.clientWidth")
    row(shown, f"{name}/0/0").locator(".rl-trajectory").click()
    expect(opened).to_be_hidden()
    answer = found.locator("tbody summary").first
    expect(answer).to_contain_text("so many words")
    assert answer.bounding_box()["width"] >= 110
    assert found.locator("xpath=..").evaluate("each => each.scrollWidth <= each.clientWidth")


@lab_only
def test_what_is_typed_first_is_for_the_first_row_and_next_for_the_next(notebook, lab, put):
    name = put(["Paris", "Lyon", "Nice"])
    shown = show(notebook, name)
    grid(shown).focus()
    press(notebook, "1", "Enter", "0", "Enter", ".", "5", "Tab")
    expect(status(shown)).to_have_text(f"{name}/0/2: - → 0.5")
    assert rewards(lab, name) == [1, 0, 0.5]


def test_in_a_table_that_is_sorted_and_filtered_the_right_row_changes(notebook, lab, put):
    name = put(*[[f"{word} of {i}" for word in ("Paris", "Lyon", "Nice")] for i in range(4)])
    give(lab, name, *range(12))
    shown = show(notebook, name)
    header = shown.get_by_role("columnheader", name="reward", exact=True)
    header.press("Enter")
    expect(header).to_have_attribute("aria-sort", "ascending")
    header.press("Enter")
    expect(header).to_have_attribute("aria-sort", "descending")
    shown.get_by_label("filter by completion").fill("nice")  # and no Enter
    expect(shown.get_by_role("gridcell", name="Nice")).to_have_count(4)
    expect(shown.get_by_role("gridcell", name="Lyon")).to_have_count(0)
    assert column(shown, "name") == [f"{name}/{i}/2" for i in (3, 2, 1, 0)]
    grid(shown).focus()
    press(notebook, "ArrowDown", "-", "7", "Enter")
    expect(status(shown)).to_have_text(f"{name}/2/2: 8 → -7")
    assert rewards(lab, name) == [0, 1, 2, 3, 4, 5, 6, 7, -7, 9, 10, 11]
    names, values = notebook.text_of(notebook.run(FRAME)).strip().splitlines()
    assert names == "|".join(column(shown, "name"))
    assert values == str([float(text) for text in column(shown, "reward")]) == "[11.0, -7.0, 5.0, 2.0]"

    shown.get_by_label("reward to set").fill("3")
    shown.get_by_role("button", name="Set the 4 that fit").press("Enter")
    asked = shown.get_by_role("alertdialog")
    expect(asked).to_contain_text(
        "Set the reward of 4 answers to 3?In 4 groups. Mean 4.25 → 4.33. 1 given by hand is replaced."
    )
    expect(asked.get_by_role("button", name="Cancel")).to_be_focused()
    press(notebook, "Escape")
    expect(asked).to_be_hidden()
    shown.get_by_role("button", name="Set the 4 that fit").press("Enter")
    asked.get_by_role("button", name="Set 4").click()
    expect(status(shown)).to_have_text("4 rewards set to 3")
    assert rewards(lab, name) == [0, 1, 3, 3, 4, 3, 6, 7, 3, 9, 10, 3]
    shown.get_by_role("button", name="Undo").press("Enter")
    expect(status(shown)).to_contain_text("4 rewards as before")
    assert rewards(lab, name) == [0, 1, 2, 3, 4, 5, 6, 7, -7, 9, 10, 11]

    shown.get_by_label("filter by reward").fill("more than 3")
    press(notebook, "Enter")
    expect(status(shown)).to_contain_text("reward: 'more than 3' is not a condition on a number → > 0.5, <= 1")
    assert len(column(shown, "name")) == 4
    shown.get_by_role("button", name="Clear filters").click()
    expect(shown.get_by_role("gridcell", name="Lyon")).to_have_count(4)
    expect(shown.get_by_label("filter by completion")).to_have_value("")
    expect(header).to_have_attribute("aria-sort", "none")
    expect(shown.get_by_role("button", name="Set all 12")).to_be_visible()


@lab_only
def test_several_rows_on_several_pages_are_set_and_undone_as_one_change(notebook, lab, put):
    name = put(*[["a", "b"]] * 60)
    shown = show(notebook, name)
    press_down = ("Shift+ArrowDown", "Shift+ArrowDown")
    grid(shown).focus()
    press(notebook, *press_down, "4", "Enter")
    expect(status(shown)).to_have_text("3 rewards set to 4")
    expect(grid(shown)).to_be_focused()
    assert rewards(lab, name)[:4] == [4, 4, 4, None]
    press(notebook, "PageDown")
    expect(row(shown, f"{name}/50/0")).to_have_class(re.compile("rl-current"))
    press(notebook, "ArrowDown", "Space")
    expect(shown.locator(".rl-chosen")).to_have_text("4 rows selected (3 elsewhere)")
    shown.get_by_label("reward to set").fill("5")
    shown.get_by_role("button", name="Set", exact=True).press("Enter")
    expect(status(shown)).to_have_text("4 rewards set to 5")
    given = rewards(lab, name)
    assert (given[:3], given[101], given.count(None)) == ([5, 5, 5], 5, 116)
    grid(shown).focus()
    press(notebook, "u", "u")
    expect(shown.locator(".rl-summary")).to_contain_text("0 rewards of 120")
    assert set(rewards(lab, name)) == {None}


@lab_only
def test_rewards_are_taken_away_by_a_key_and_come_back_by_another(notebook, lab, put):
    name = put(["a", "b", "c"], rewards=[1, 0.5, 0])
    shown = show(notebook, name)
    grid(shown).focus()
    press(notebook, "ArrowDown", "Delete")
    expect(status(shown)).to_have_text(f"{name}/0/1: reward cleared")
    expect(row(shown, f"{name}/0/1")).to_contain_text("no reward")
    assert rewards(lab, name) == [1, None, 0]
    press(notebook, "ArrowUp", "Shift+ArrowDown", "Shift+ArrowDown", "Backspace")
    expect(status(shown)).to_have_text("2 rewards cleared")
    press(notebook, "u", "u")
    expect(shown.get_by_role("gridcell", name="no reward yet")).to_have_count(0)
    expect(shown.locator(".rl-above")).to_contain_text(re.compile(r"Mean reward\s*0.5 "))
    assert rewards(lab, name) == [1, 0.5, 0]


@lab_only
def test_what_is_no_reward_is_explained_and_changes_nothing(notebook, lab, put):
    name = put(["Paris", "Lyon"], rewards=[1, 0])
    shown = show(notebook, name)
    newest = lab.store.rewards.newest_edit()
    grid(shown).focus()
    field = shown.get_by_label(f"reward of {name}/0/0")
    for typed in ("abc", "1e999", "0,5", ""):
        press(notebook, "Enter")
        field.fill(typed)
        press(notebook, "Enter")
        expect(status(shown)).to_contain_text(f"the reward of {name}/0/0 is '{typed}', which is no finite number")
        expect(field).to_have_value(typed)
        expect(field).to_have_attribute("aria-invalid", "true")
        press(notebook, "Escape")
        expect(grid(shown)).to_be_focused()
    notebook.screenshot("rewards-refused", shown)
    shown.get_by_label("reward to set").fill("much")
    press(notebook, "Enter")
    expect(status(shown)).to_contain_text("'much', which is no finite number → a number such as 0.5")
    assert (lab.store.rewards.newest_edit(), column(shown, "reward")) == (newest, ["1", "0"])
    shown.get_by_role("button", name="Undo").click()
    expect(shown.get_by_role("gridcell", name="no reward yet")).to_have_count(2)
    shown.get_by_role("button", name="Undo").click()
    expect(status(shown)).to_contain_text(f"no reward of {name} is left to undo")


@lab_only
def test_what_another_cell_changes_appears_by_itself_with_its_new_columns(notebook, lab, put):
    name = put(["Paris", "Rome"], rewards=[1, 0])
    shown = show(notebook, name)
    notebook.run(SCORE.format(name=name))
    expect(shown.get_by_role("columnheader", name="<i>new</i>")).to_be_attached()
    expect(shown.get_by_role("columnheader", name="length")).to_be_attached()
    assert column(shown, "reward") == ["6", "5"]
    assert column(shown, "component:length") == ["5", "4"]
    header = shown.get_by_role("columnheader", name="length")
    header.press("Enter")
    expect(header).to_have_attribute("aria-sort", "ascending")
    assert column(shown, "name") == [f"{name}/0/1", f"{name}/0/0"]

    grid(shown).focus()
    press(notebook, "Enter", "9")
    notebook.page.evaluate(
        "code => window.harness.panel().sessionContext.session.kernel.requestExecute({code}).done",
        f"import rolloutlab; rolloutlab.lab().rewards('{name}').set('{name}/0/0', -1)",
    )
    expect(shown.get_by_label("reward of")).to_have_value("9")
    press(notebook, "Escape")
    expect(row(shown, f"{name}/0/0")).to_contain_text("hand, was 6")
    assert rewards(lab, name) == [-1, 5]


@lab_only
def test_the_figures_follow_what_another_cell_changes_under_a_sort_or_a_filter(notebook, lab, put):
    name = put(["a", "b"], ["c", "d"], rewards=[0, 1, 0.5, 0.25])
    shown = show(notebook, name)
    header = shown.get_by_role("columnheader", name="reward")
    header.press("Enter")
    expect(header).to_have_attribute("aria-sort", "ascending")
    notebook.run(f"import rolloutlab; rolloutlab.lab().rewards('{name}').set('{name}/0/0', 9)")
    expect(shown.locator(".rl-band")).to_contain_text("2.69")
    expect(shown.get_by_role("button", name="Undo")).to_contain_text("1 reward set to 9")
    shown.get_by_label("reward", exact=True).or_(shown.locator('[tabulator-field="reward"] input')).last.fill("< 0.75")
    expect(shown.locator(".rl-band")).to_contain_text("Mean reward of 2 answers that fit")
    notebook.run(f"rolloutlab.lab().rewards('{name}').set('{name}/1/0', 0.9)")
    expect(shown.locator(".rl-band")).to_contain_text("Mean reward of 1 answer that fits")


@lab_only
def test_it_goes_on_after_a_reload_and_says_what_to_do_after_a_restart(notebook, lab, put):
    name = put(["Paris", "Lyon"], rewards=[1, 0])
    show(notebook, name)
    number = notebook._number
    notebook.reload()
    shown = notebook.outputs(number).locator(".rl-rewards")
    grid(shown).focus()
    press(notebook, "3", "Enter")
    expect(status(shown)).to_have_text(f"{name}/0/0: 1 → 3")
    notebook.restart_kernel()
    ended = notebook.outputs(number).locator(".rl-ended")
    expect(ended).to_have_text(
        "the kernel has ended or was restarted: this is what it showed last → run the cell again"
    )
    for role in ("button", "textbox", "searchbox", "combobox"):
        expect(shown.get_by_role(role)).to_have_count(0)
    grid(shown).focus()
    press(notebook, "ArrowUp", "8", "Enter", "u")
    expect(status(shown)).to_contain_text("the kernel has ended or was restarted")
    assert rewards(lab, name) == [3, 0]
    again = show(notebook, name)
    assert column(again, "reward") == ["3", "0"]
    grid(again).focus()
    press(notebook, "8", "Enter")
    expect(status(again)).to_have_text(f"{name}/0/0: 3 → 8")
    assert rewards(lab, name) == [8, 0]


@lab_only
def test_a_reward_that_is_being_typed_stays_when_the_grid_changes_its_width(notebook, lab, put):
    name = put(["Paris", "Lyon"], rewards=[1, 0])
    shown = show(notebook, name)
    grid(shown).focus()
    press(notebook, "2")
    notebook.narrow(900)
    notebook.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    press(notebook, "5", "Enter")
    expect(status(shown)).to_have_text(f"{name}/0/0: 1 → 25")
    assert rewards(lab, name) == [25, 0]


@lab_only
def test_a_reward_that_is_being_typed_stays_when_the_grid_is_seen_first(notebook, lab, put):
    name = put(["Paris", "Lyon"], rewards=[1, 0])
    begin = "%load_ext rolloutlab\nlab = rolloutlab.lab()\nprint('above ' * 5000)"
    shown = notebook.run(f"import rolloutlab\n{begin}\ndisplay(lab.rewards({name!r}))").locator(".rl-rewards")
    expect(shown.get_by_role("gridcell").first).to_be_attached()
    expect(shown).not_to_be_in_viewport()
    grid(shown).evaluate("element => element.focus({ preventScroll: true })")
    grid(shown).evaluate("element => element.dispatchEvent(new KeyboardEvent('keydown', { key: '2', bubbles: true }))")
    grid(shown).scroll_into_view_if_needed()
    notebook.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    press(notebook, "5", "Enter")
    expect(status(shown)).to_have_text(f"{name}/0/0: 1 → 25")


def test_what_people_and_policies_wrote_is_text_and_nothing_of_it_runs(notebook, lab, put):
    name = put([HOSTILE, "Paris " * 180_000], rewards=[1, 0], parts={"<b>x</b>": 0.5, "a.b": 0.25})
    shown = show(notebook, name)
    told = HOSTILE.replace("\x1b", "␛").replace("\u202e", "⟨202e⟩")
    expect(row(shown, f"{name}/0/0")).to_contain_text(told)
    for part, value in (("<b>x</b>", "0.5"), ("a.b", "0.25")):
        expect(shown.get_by_role("columnheader", name=part)).to_be_attached()
        assert column(shown, f"component:{part}") == [value] * 2
    shown.get_by_label("filter by a.b").fill("= 0.25")
    press(notebook, "Enter")
    assert shown.evaluate("element => element.outerHTML.length") < 40_000
    grid(shown).focus()
    press(notebook, "o")
    expect(shown.get_by_label("the current trajectory")).to_contain_text(told)
    press(notebook, "ArrowDown", "o")
    expect(shown.get_by_label("the current trajectory")).to_contain_text(f"{name}/0/1")
    press(notebook, "o")
    expect(shown.get_by_label("the current trajectory")).to_be_hidden()
    press(notebook, "2", "Enter")
    expect(status(shown)).to_have_text(f"{name}/0/1: 0 → 2")
    assert shown.locator("script, img, .rl-grid b").count() == 0
    assert notebook.page.evaluate("window.hacked") is None


@lab_only
def test_a_screen_reader_is_told_what_each_part_is(notebook, put):
    name = put(["Paris", "Lyon"], rewards=[1, 0], parts={"right": 1.0})
    shown = show(notebook, name)
    expect(grid(shown)).to_have_accessible_name(f"rewards of {name}")
    headers = ("trajectory", "reward", "advantage", "completion", "prompt", "right", "source", "tokens", "finish")
    for header in headers:
        expect(shown.get_by_role("columnheader", name=header, exact=True)).to_have_attribute("aria-sort", "none")
        expect(shown.get_by_label(f"filter by {header}", exact=True)).to_have_count(1)
    nameless = (
        "elements => elements.filter(e => !e.ariaLabel && !e.innerText && !e.labels?.length).map(e => e.outerHTML)"
    )
    assert shown.locator("button, input, select").evaluate_all(nameless) == []
    assert shown.get_by_label("rows of a page").count() == 1
    grid(shown).focus()
    press(notebook, "ArrowDown", "Space")
    current = grid(shown).get_attribute("aria-activedescendant")
    expect(shown.locator(f"[id='{current}']")).to_contain_text(f"{name}/0/1")
    expect(row(shown, f"{name}/0/1")).to_have_attribute("aria-selected", "true")
    expect(shown.get_by_role("toolbar")).to_have_accessible_name("rewards")


def test_a_view_whose_kernel_was_shut_down_says_so_and_offers_nothing(notebook, put):
    shown = show(notebook, put(["Paris", "Lyon"], rewards=[1, 0]))
    expect(shown.get_by_role("button", name="Undo")).to_be_visible()
    notebook.page.evaluate("() => window.harness.panel().sessionContext.session.kernel.shutdown()")
    expect(notebook.outputs(notebook._number).locator(".rl-ended")).to_contain_text("run the cell again")
    expect(shown.get_by_role("button")).to_have_count(0)
    expect(row(shown, "Paris")).to_be_visible()


PLACES = """grid => [...grid.querySelectorAll(".tabulator-col[tabulator-field]")].map((head) => {
    const cell = grid.querySelector(`.tabulator-row [tabulator-field="${head.getAttribute("tabulator-field")}"]`);
    return [head, cell].map((each) => Math.round(each.getBoundingClientRect().x));
})"""


def test_a_header_that_takes_the_focus_sideways_takes_its_columns_along(notebook, put):
    shown = show(notebook, put(["Paris", "Lyon"], rewards=[1, 0], parts={"right": 1.0, "brief": 0.5}))
    notebook.narrow(600)
    for last in (shown.get_by_role("columnheader", name="finish", exact=True), shown.get_by_label("filter by finish")):
        shown.get_by_role("columnheader", name="trajectory", exact=True).focus()
        last.focus()
        expect(last).to_be_in_viewport()
        together = f"grid => ({PLACES})(grid).every(([head, cell]) => head === cell)"
        notebook.page.wait_for_function(together, arg=grid(shown).element_handle())
    assert grid(shown).evaluate("grid => grid.querySelector('.tabulator-tableholder').scrollLeft") > 0


@lab_only
def test_it_is_as_readable_in_the_dark_and_in_a_narrow_window(notebook, lab, put):
    name = put(["Paris " * 30, "Lyon", "Nice"], ["Lima", "Quito"], rewards=[1, 0, 0.25, 0.5, 0.5], parts={"right": 1.0})
    lab.rewards(name).set(f"{name}/0/1", 0.75)
    shown = show(notebook, name)
    notebook.screenshot("rewards-light", shown)
    notebook.theme("JupyterLab Dark")
    grid(shown).focus()
    press(notebook, "Shift+ArrowDown")
    notebook.screenshot("rewards-dark", shown)
    notebook.narrow()
    shown.get_by_role("button", name="Last Page").scroll_into_view_if_needed()
    expect(shown.get_by_role("button", name="Last Page")).to_be_in_viewport(ratio=1)
    wider = "element => element.scrollWidth - element.clientWidth"
    assert shown.evaluate(wider) == 0
    for title in shown.locator(".tabulator-col-title").all():
        assert title.evaluate(wider) == 0, "a header is cut off"
    names = shown.locator(".rl-trajectory span:last-child")
    assert [round(end.bounding_box()["x"] + end.bounding_box()["width"]) for end in names.all()] == [
        round(cell["x"] + cell["width"]) for cell in map(Locator.bounding_box, shown.locator(".rl-trajectory").all())
    ], "the end of a name is cut off"
    notebook.screenshot("rewards-narrow")


@lab_only
def test_a_change_elsewhere_leaves_the_reader_on_the_page_and_two_showings_of_a_view_agree(notebook, lab, put):
    answers = [[f"answer {i} {j}" for j in range(4)] for i in range(30)]
    name = put(*answers, rewards=[0.5] * 120)
    shown = show(notebook, name)
    press_in = notebook.page.keyboard.press
    grid(shown).focus()
    press_in("PageUp")  # there is none before the first
    press_in("PageDown")
    expect(row(shown, f"{name}/25/0")).to_be_visible()
    again = notebook.run(f"view.set('{name}/25/1', 9)\nview").locator(".rl-rewards")
    expect(row(shown, f"{name}/25/1")).to_contain_text("9")
    expect(row(again, f"{name}/0/0")).to_be_visible()
    grid(again).focus()
    notebook.page.keyboard.type("7")
    press_in("Enter")
    expect(row(again, f"{name}/0/0")).to_contain_text("7")
    shown.scroll_into_view_if_needed()  # what is far away waits until it is near
    expect(shown.locator(".rl-summary")).to_have_text(again.locator(".rl-summary").inner_text())
    expect(row(shown, f"{name}/25/0")).to_be_visible()


@lab_only
def test_leaving_the_field_by_a_click_stores_nothing(notebook, lab, put):
    name = put(["Paris", "Lyon"], rewards=[1, 0])
    shown = show(notebook, name)
    grid(shown).focus()
    notebook.page.keyboard.type("0.")
    shown.locator(".rl-above").click()
    expect(shown.locator(".rl-reward-input")).to_have_count(0)
    assert rewards(lab, name) == [1, 0]


@lab_only
def test_a_failed_row_shows_its_message_and_opened_the_whole_with_the_line(notebook, lab, put):
    name = put(["right", "wrong"])
    failed = lab.collection(name).trajectories[1]
    place = "line 3: raise ValueError(<b>unit</b>)"
    failure = Failure(Ref(failed.id, failed.name), "exact", "ValueError", f"no unit {HOSTILE}\nand more", place)
    stored = lab.store.find(name)
    change = lab.store.scorings.begin(stored, NewScoring("function", ["exact"], "", {}))
    lab.store.scorings.store(change, "function", [], [failure], keep_hand=True)
    shown = show(notebook, name)
    cell = row(shown, failed.name).locator(".rl-why")
    expect(cell).to_have_text(re.compile(r"^failed: ValueError: no unit <script>.*abc$"))
    expect(cell).to_have_attribute("title", re.compile(r"and more\n\nexact, line 3: raise ValueError\(<b>unit</b>\)$"))
    row(shown, failed.name).click()
    press(notebook, "o")
    opened = shown.locator(".rl-conversation")
    expect(opened).to_contain_text("and more")
    expect(opened).to_contain_text(f"exact, {place}")
    press(notebook, "1", "Enter")
    expect(row(shown, failed.name).locator(".rl-why").filter(has_text="failed")).to_have_count(0)
    press(notebook, "u")
    expect(cell).to_have_text(re.compile("^failed: ValueError: no unit"))
    assert notebook.page.evaluate("window.hacked") is None
