"""Runs in a browser: one cursor for all curves and the texts, zoom, several seeds, and what is new without a reload."""

import csv
import itertools
import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, expect

from rolloutlab.session import Session
from rolloutlab.store.origins import Origin
from tests.runs.conftest import SERVICE, Trainer

from .notebook import NotebookPage
from .test_every_view import AXE, FINDINGS, SIDEWAYS, THEMES

pytestmark = [pytest.mark.process, pytest.mark.parametrize("front_end", ["lab"])]

STEPS = 6
MANY = 100
INK = """canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const is = (alpha) => alpha > 20 && alpha < 60;
    return data.filter((value, i) => i % 4 === 3 && is(value)).length;
}"""
"""How many pixels of a canvas are as pale as a band."""


@pytest.fixture(scope="package")
def trainer(lab: Session) -> Trainer:
    return Trainer(lab.store)


@pytest.fixture(scope="package")
def numbered() -> Iterator[int]:
    return itertools.count()


@pytest.fixture
def made(trainer: Trainer, numbered: Iterator[int]) -> Callable[..., str]:
    """Makes a run of some steps of a model of its own; its name."""

    def make(steps: int = STEPS, *, high: float = 1.0, held_out: bool = True, **origin: object) -> str:
        model = f"lab/seen-{next(numbered)}"
        if origin:
            trainer.lab.origins.set(SERVICE, model, Origin(**origin))
        go_on(trainer, model, 0, steps, high=high, held_out=held_out)
        return model

    return make


def go_on(
    trainer: Trainer, model: str, begin: int, end: int, *, high: float = 1.0, held_out: bool = True, of: int = STEPS
) -> None:
    """Let a run go on from a checkpoint to another: its mean reward rises to `high`."""
    for step in range(begin, end):
        mean = high * (step + 1) / max(of, end)
        rewards = [[mean, mean / 2], [mean, 0.0]]

        def answers(i: int, j: int, step: int = step) -> str:
            return f"{model} {step}.{i}.{j}"

        if held_out:
            trainer.sample("held_out.seen", rewards, step=step, model=model, answers=answers)
        sampled = trainer.sample("seen", rewards, step=step, model=model, answers=answers, rows=f"row{step}")
        numbers = {"step": 1, "num_gradient_steps": 1, "entropy": 1 / (step + 1), "kl_base": 0.01 * step}
        trainer.train(sampled, step=step + 1, model=model, steps=[numbers])


def show(notebook: NotebookPage, *names: str) -> Locator:
    """The view of some runs, once its curves are drawn."""
    view = notebook.run(f"%load_ext rolloutlab\n%runs {' '.join(names)}").locator(".rl-runs")
    view.locator(".rl-large").scroll_into_view_if_needed()  # only what is near is drawn
    expect(view.locator(".rl-large canvas")).to_be_visible()
    return view


def hover(view: Locator, share: float, panel: str = ".rl-large") -> None:
    """Put the pointer on a place of a panel, from 0 at its left to 1 at its right."""
    over = view.locator(f"{panel} .u-over").first
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    over.hover(position={"x": share * (box["width"] - 1), "y": box["height"] / 2})


def places(view: Locator) -> list[float]:
    """Where the cursor is in each plot, as a share of its width."""
    shares: list[float] = view.evaluate(
        """view => [...view.querySelectorAll(".u-over")].map((over) => {
            const cursor = over.querySelector(".u-cursor-x").getBoundingClientRect();
            const box = over.getBoundingClientRect();
            return (cursor.left - box.left) / box.width;
        })"""
    )
    return shares


def test_the_pointer_moves_one_cursor_in_all_panels_and_the_texts(notebook, made):
    one, other = made(), made(high=0.5)
    view = show(notebook, one, other)
    expect(view.locator(".rl-text-tools > b")).to_have_text(f"Texts at step {STEPS - 1}")
    hover(view, 2 / (STEPS - 1))
    expect(view.locator(".rl-text-tools > b")).to_have_text("Texts at step 2")
    expect(view.locator(".rl-large .rl-values")).to_have_text("0.313 · 0.156")
    expect(view.locator(".rl-tip")).to_contain_text("step 2, held out · trained on")
    assert len(places(view)) >= 4
    assert places(view) == pytest.approx([2 / (STEPS - 1)] * len(places(view)), abs=0.02)
    expect(view.locator(".rl-card")).to_have_count(2)
    expect(view.locator(".rl-card pre").first).to_contain_text(f"{one} 2.")
    expect(view.locator(".rl-card pre").last).to_contain_text(f"{other} 2.")

    hover(view, 1.0, ".rl-graph:not(.rl-large)")
    expect(view.locator(".rl-text-tools > b")).to_have_text(f"Texts at step {STEPS - 1}")
    notebook.page.mouse.down()
    notebook.page.mouse.up()
    hover(view, 0.0)
    expect(view.locator(".rl-text-tools > b")).to_have_text(f"Texts at step {STEPS - 1}")  # a click keeps the cursor


def test_the_slider_and_the_buttons_choose_texts_whose_group_is_opened_by_a_cell(notebook, made):
    name = made()
    view = show(notebook, name)
    answer = view.locator(".rl-card pre")
    slider = view.get_by_label("step of the texts")
    slider.press("Home")
    expect(answer).to_contain_text(f"{name} 0.")
    slider.press("ArrowRight")
    expect(answer).to_contain_text(f"{name} 1.")
    expect(slider).to_have_attribute("aria-valuetext", "step 1")
    view.get_by_role("button", name="worst").click()
    expect(answer).to_have_text(f"{name} 1.1.1")
    view.get_by_role("button", name="next text").click()
    expect(answer).to_have_text(f"{name} 1.0.1")
    view.get_by_role("button", name="the text before").click()
    expect(answer).to_have_text(f"{name} 1.1.1")
    view.get_by_role("button", name="best", exact=True).click()
    expect(answer).to_have_text(re.compile(rf"{name} 1\.[01]\.0"))
    cell = view.locator(".rl-card button.rl-cell").inner_text()
    assert re.fullmatch(r"%group held_out\.seen:\d+/[01]", cell)
    view.locator(".rl-card button.rl-cell").click()
    sources = "() => window.harness.panel().content.widgets.map((cell) => cell.model.sharedModel.source)"
    assert cell in notebook.page.evaluate(sources)


def test_several_seeds_are_a_mean_with_a_band(notebook, made):
    alone = show(notebook, made())
    expect(alone.locator(".rl-legend")).to_contain_text("best checkpoint")
    expect(alone.locator(".rl-legend")).not_to_contain_text("seeds")
    pale = alone.locator(".rl-large canvas").evaluate(INK)
    seeds = [
        made(high=high, sweep="banded", settings={"learning_rate": 0.01}, seed=seed)
        for seed, high in enumerate((1, 0.4))
    ]
    view = show(notebook, *seeds)
    expect(view.locator(".rl-legend")).to_contain_text("least and largest of 2 seeds")
    expect(view.get_by_role("button", name="learning_rate 0.01")).to_have_attribute("aria-pressed", "true")
    assert view.locator(".rl-large canvas").evaluate(INK) > pale + 2000


def test_a_new_step_is_shown_and_nothing_that_was_chosen_is_lost(notebook, made, trainer):
    one, other = made(), made()
    view = show(notebook, one, other)
    view.get_by_role("button", name=other, exact=True).click()
    view.get_by_role("button", name="Panels").click()
    view.get_by_label("Entropy, nats per token").uncheck()
    hover(view, 1 / (STEPS - 1))
    expect(view.locator(".rl-text-tools > b")).to_have_text("Texts at step 1")
    go_on(trainer, one, STEPS, STEPS + 2, of=STEPS + 2)
    expect(view.get_by_label("step of the texts")).to_have_attribute("max", str(STEPS + 1))
    expect(view.locator(".rl-text-tools > b")).to_have_text("Texts at step 1")
    assert places(view)[0] == pytest.approx(1 / (STEPS + 1), abs=0.02)
    expect(view.get_by_role("button", name=other, exact=True)).to_have_attribute("aria-pressed", "false")
    expect(view.locator(".rl-large .rl-values > b")).to_have_count(1)
    expect(view.locator("figcaption").filter(has_text="Entropy")).to_have_count(0)
    expect(view.locator(".rl-folded")).to_contain_text("Entropy")


def test_a_drag_zooms_all_panels_and_a_double_click_goes_back(notebook, made):
    view = show(notebook, made())
    hover(view, 0.0)
    whole = view.get_by_role("button", name="Whole range")
    expect(whole).to_have_count(0)
    box = view.locator(".rl-large .u-over").bounding_box()
    middle = box["y"] + box["height"] / 2
    notebook.page.mouse.move(box["x"] + 0.35 * box["width"], middle)
    notebook.page.mouse.down()
    notebook.page.mouse.move(box["x"] + 0.9 * box["width"], middle, steps=4)
    notebook.page.mouse.up()
    expect(whole).to_be_visible()
    hover(view, 0.45)  # steps 2, 3 and 4 are left
    expect(view.locator(".rl-text-tools > b")).to_have_text("Texts at step 3")
    assert len({round(place, 1) for place in places(view)}) == 1
    view.locator(".rl-large .u-over").dblclick()
    expect(whole).to_have_count(0)
    hover(view, 1.0)
    expect(view.locator(".rl-text-tools > b")).to_have_text(f"Texts at step {STEPS - 1}")


def test_the_keyboard_moves_the_cursor_and_says_the_values(notebook, made):
    name = made()
    view = show(notebook, name)
    curves = view.get_by_role("group", name=re.compile("^curves"))
    curves.press("ArrowLeft")
    expect(view.locator(".rl-text-tools > b")).to_have_text(f"Texts at step {STEPS - 2}")
    expect(view.get_by_role("status").filter(has_text=f"step {STEPS - 2}, {name} 0.5")).to_have_count(1)
    curves.press("Home")
    expect(view.locator(".rl-text-tools > b")).to_have_text("Texts at step 0")
    curves.press("Escape")
    expect(view.locator(".rl-text-tools > b")).to_have_text(f"Texts at step {STEPS - 1}")


def test_curves_go_by_tokens_or_time_too_and_keep_their_step(notebook, made):
    view = show(notebook, made())
    view.get_by_label("step of the texts").press("Home")
    view.get_by_label("step of the texts").press("ArrowRight")
    view.get_by_role("button", name="tokens", exact=True).click()
    expect(view.locator(".rl-text-tools > b")).to_have_text("Texts at step 1")
    hover(view, 1.0)
    expect(view.locator(".rl-tip")).to_contain_text(f"{8 * (STEPS - 1)} tokens")  # until the last checkpoint
    expect(view.locator(".rl-tip")).to_contain_text(f"step {STEPS - 1}")
    view.get_by_role("button", name="time", exact=True).click()
    expect(view.locator(".rl-text-tools > b")).to_have_text(f"Texts at step {STEPS - 1}")
    hover(view, 0.0)
    expect(view.locator(".rl-text-tools > b")).to_have_text("Texts at step 0")


def test_all_numbers_are_a_table_and_a_file(notebook, made):
    one, other = made(), made(3)
    view = show(notebook, one, other)
    view.get_by_role("button", name="Table").click()
    table = view.get_by_role("region", name="all numbers")
    expect(table.get_by_role("row")).to_have_count(1 + STEPS)
    expect(table.get_by_role("columnheader", name="Mean reward, held out")).to_be_visible()
    view.get_by_label("run", exact=True).select_option(other)
    expect(table.get_by_role("row")).to_have_count(1 + 3)
    with notebook.page.expect_download() as saved:
        view.get_by_role("button", name="CSV").click()
    rows = list(csv.DictReader(saved.value.path().read_text().splitlines()))
    assert [(row["run"], row["step"]) for row in rows] == [(one, str(i)) for i in range(STEPS)] + [
        (other, str(i)) for i in range(3)
    ]
    means = [0.625 * (i + 1) / STEPS for i in range(STEPS)]
    assert [float(row["held_out"]) for row in rows[:STEPS]] == pytest.approx(means, rel=1e-12)
    assert {"reward", "nothing", "entropy", "kl_base", "length", "cut_off", "tokens", "seconds"} <= set(rows[0])


def test_fewer_than_three_steps_are_figures(notebook, made):
    name = made(2)
    view = notebook.run(f"%load_ext rolloutlab\n%runs {name}").locator(".rl-runs")
    expect(view.locator(".rl-large")).to_contain_text("at 1")
    expect(view.locator(".rl-large .rl-few")).to_contain_text(re.compile(r"0\.104 at 0\s*0\.208 at 1"))
    expect(view.locator("canvas")).to_have_count(0)


def test_a_line_of_a_hundred_points_is_smoothed_until_a_user_says_otherwise(notebook, made):
    view = show(notebook, made())
    expect(view.get_by_label("smoothing")).to_have_attribute("aria-valuetext", "off")
    view = show(notebook, made(MANY, held_out=False))
    slider = view.get_by_label("smoothing")
    expect(slider).to_have_attribute("aria-valuetext", "mean of 5 points")
    smooth = view.locator(".rl-large canvas").evaluate(INK)
    slider.press("Home")
    expect(slider).to_have_attribute("aria-valuetext", "off")
    notebook.page.wait_for_function("() => true")
    assert view.locator(".rl-large canvas").evaluate(INK) != smooth


def test_what_is_above_0_is_drawn_by_logarithms_if_wanted(notebook, made):
    view = show(notebook, made())
    view.get_by_role("button", name="Log").click()
    titles = view.locator("figcaption > b")
    expect(titles.filter(has_text="Entropy, nats per token, log")).to_have_count(1)
    distance = "KL to @0, nats per token"  # which begins at 0
    expect(titles.filter(has_text=distance)).to_have_text(distance)


def test_curves_stay_and_buttons_go_with_the_kernel(notebook, made):
    name = made()
    view = show(notebook, name)
    hover(view, 0.0)
    expect(view.locator(".rl-card pre")).to_contain_text(f"{name} 0.")
    notebook.restart_kernel()
    expect(notebook.outputs(notebook._number).locator(".rl-ended")).to_contain_text(f"→ %runs {name}")
    expect(view.get_by_role("button")).to_have_count(0)
    expect(view.get_by_role("slider")).to_have_count(0)
    expect(view.locator(".rl-large canvas")).to_be_visible()
    expect(view.locator(".rl-legend")).to_contain_text(name)
    expect(view.locator(".rl-card pre")).to_contain_text(f"{name} 0.")
    expect(view.locator(".rl-text-tools > b")).to_have_text("Texts at step 0")
    hover(view, 1.0)
    expect(view.locator(".rl-text-tools > b")).to_have_text("Texts at step 0")  # which its texts are of


def test_axe_finds_nothing_and_one_column_fits_390_pixels(notebook, made):
    view = show(notebook, *(made(high=1 / (1 + i)) for i in range(5)))
    view.get_by_role("button", name="Panels").click()
    view.get_by_role("button", name="Table").click()
    notebook.page.evaluate(AXE.read_text(encoding="utf-8"))
    found = []
    for theme in THEMES:
        notebook.theme(theme)
        for width in (1400, 390):
            notebook.narrow(width)
            hover(view, 0.5)
            expect(view.locator(".rl-card")).to_have_count(5)
            notebook.screenshot(f"run-view-{width}-{theme.split()[1].lower()}", of=view)
            findings = notebook.page.evaluate(SIDEWAYS) + notebook.page.evaluate(FINDINGS)
            found += [(theme, width, *each) for each in findings]
    assert not found, "\n".join(map(repr, found))
    lefts = view.locator(".rl-graph").evaluate_all("all => all.map((each) => each.getBoundingClientRect().left)")
    assert len(set(lefts)) == 1
