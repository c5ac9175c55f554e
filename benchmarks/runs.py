"""The view of five runs of 500 steps with 20 numbers in Chromium: how soon it is painted, and follows the pointer.

Every figure is taken in the page: from the state that Python has sent, or from a move of the pointer, to the frame that
shows it. There is no kernel behind the page: what Python takes to read runs is another matter.
"""

import json
import math
import random
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict
from statistics import median
from typing import Any

from goals import Goal, conclude
from measure import ROOT
from playwright.sync_api import Page, sync_playwright

from rolloutlab.widgets import run as render
from rolloutlab.widgets.base import BUNDLES
from rolloutlab.widgets.run import Overlay, RunCourse, RunRow
from rolloutlab.widgets.run_numbers import NUMBERS, known_numbers

sys.path.insert(0, str(ROOT))
from tests.browser.conftest import FLAGS

RUNS, STEPS = 5, 500
REPEATS, MOVES = 5, 20
NAMES = (*(number.name for number in NUMBERS if number.name != "other_reward"), "reward.right")

OPEN = """async ([script, style, state]) => {
    const address = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    const module = (await import(address)).default;
    document.body.append(Object.assign(document.createElement("style"), { textContent: style }));
    const listeners = [];
    const model = {
        get: () => state,
        on: (_, listener) => listeners.push(listener),
        off: () => {},
        send: ({ id, call }) => listeners.forEach((each) => each({ id, result: answers[call] })),
    };
    const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    const until = async (seen) => { do await painted(); while (!seen()); };
    const answers = { texts: { texts: [] }, renewed: null };
    const element = document.createElement("div");
    document.body.append(element);
    const begun = performance.now();
    module.render({ model, el: element });
    const panels = () => [...element.querySelectorAll(".rl-graph")];
    const near = () => panels().filter((each) => each.getBoundingClientRect().top < innerHeight);
    await until(() => near().every((each) => each.querySelector("canvas")));
    return performance.now() - begun;
}"""
"""Milliseconds until all curves in the window are painted."""
MOVE = """async (share) => {
    const over = document.querySelector(".rl-large .u-over");
    const box = over.getBoundingClientRect();
    const begun = performance.now();
    const place = { clientX: box.left + share * box.width, clientY: box.top + 9 };
    over.dispatchEvent(new MouseEvent("mousemove", { bubbles: true, ...place }));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    return performance.now() - begun;
}"""
"""Milliseconds until the cursor of every panel has followed the pointer."""
REDRAW = """async (by) => {
    const button = [...document.querySelectorAll(".rl-choice > button")].find((each) => each.textContent === by);
    const begun = performance.now();
    button.click();
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    return performance.now() - begun;
}"""
"""Milliseconds until all curves are drawn over another axis."""


def state(runs: int = RUNS, steps: int = STEPS) -> dict[str, Any]:
    """What Python sends of some runs."""
    courses = [_course(i, steps) for i in range(runs)]
    rows = [_row(course) for course in courses]
    shown = Overlay(courses, rows, known_numbers(NAMES), [], "letters")
    return {
        "version": [0],
        "top": render.top(shown),
        "courses": [asdict(course) for course in courses],
        "numbers": [asdict(number) for number in shown.numbers],
        "best": [row.at[0] for row in rows],
        "names": [course.name for course in courses],
    }


def _course(i: int, steps: int) -> RunCourse:
    chance = random.Random(i)
    numbers = {name: [math.log1p(step) / 7 + chance.gauss(0.2, 0.05) for step in range(steps)] for name in NAMES}
    hours = [step / 20 for step in range(steps)]
    return RunCourse(f"lab/run-{i}", [f"lab/run-{i}"], [*range(steps)], hours, numbers, main="held_out")


def _row(course: RunCourse) -> RunRow:
    means = course.numbers["held_out"]
    best = max(range(len(means)), key=lambda step: means[step] or 0.0)
    return RunRow(course.name, means[0], means[best], None, [best], "", None, {"learning_rate": 1e-4}, [], [], "")


def measure(page: Page, shown: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of each figure, the median of a few."""
    bundle = [(BUNDLES / f"run.{kind}").read_text(encoding="utf-8") for kind in ("js", "css")]
    painted = []
    for _ in range(REPEATS):
        page.goto("about:blank")
        painted.append(page.evaluate(OPEN, [*bundle, shown]))
    moved = [page.evaluate(MOVE, (i + 1) / (MOVES + 1)) for i in range(MOVES)]
    redrawn = [page.evaluate(REDRAW, by) for by in ("tokens", "step") * REPEATS]
    return {name: median(of) / 1000 for name, of in (("paint", painted), ("cursor", moved), ("redraw", redrawn))}


def main() -> int:
    shown = state()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        seconds = measure(browser.new_page(viewport={"width": 1280, "height": 900}), shown)
        browser.close()
    print(f"state      {len(json.dumps(shown)) / 1e6:6.1f} MB of {RUNS} runs, {STEPS} steps, {len(NAMES)} numbers")
    for name, each in seconds.items():
        print(f"{name:10} {1000 * each:6.0f} ms")
    goals = {"paint": 0.5, "cursor": 0.1, "redraw": 0.5}
    return conclude([Goal(f"runs_{name}_seconds", seconds[name], "<=", goal) for name, goal in goals.items()])


if __name__ == "__main__":
    sys.exit(main())
