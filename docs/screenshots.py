"""Take the pictures of the views that the README and these pages show: `python docs/screenshots.py [NAME...]`.

A real JupyterLab in Chromium, on the practice policy; each picture is of one widget. Needs what `tests/browser` needs.
"""

import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageOps
from playwright.sync_api import Locator, expect, sync_playwright

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser.conftest import FLAGS  # noqa: E402
from tests.browser.jupyter import Jupyter  # noqa: E402
from tests.browser.notebook import NotebookPage  # noqa: E402

WIDTH, HEIGHT = 1290, 1100
TALL = 1700
"""Of a view that is higher."""
SCALE = 2
MARGIN, BORDER = 24, 4
"""Pixels: of white around a picture, and of the next cell at its lower end."""
COLOURS = 128
LARGEST = 250_000
"""Bytes of a picture."""

REWARDS = """
rows = [("Sort these letters: z j p l", "j l p z"), ("Is a snail fast?", "no"),
        ("What is the capital of Peru?", "Lima"), ("Sort these letters: y n c s", "c n s y"),
        ("Sort these letters: s h i f", "f h i s"), ("Say apple 5 times", "apple apple apple apple apple")]
rows = [{"task": task, "expected": expected} for task, expected in rows]
lab.chat("tasks", "{{task}}", n=4, over=rows, seed=2, max_tokens=16)
def score(trajectory, answer, messages, row):
    right = [word == wanted for word, wanted in zip(answer.split(), row["expected"].split())]
    return {"right": sum(right) / len(row["expected"].split()), "exact": 0.5 * (answer == row["expected"])}
lab.reward("tasks", score)
view = lab.rewards("tasks")
sentences = [row["name"] for row in view.page()["rows"] if row["completion"].startswith("The capital of Peru is Lima")]
view.set(sentences[0], 1.0)
view
"""
GROUP = """
def calculator(expression: str) -> int:
    '''Calculate an expression.

    Args:
        expression: two numbers with a sign between them
    '''
    left, _, right = expression.split()
    return int(left) + int(right)
from random import Random
random = Random(4)
pairs = [(random.randint(10, 99), random.randint(10, 99)) for _ in range(24)]
sums = [{"a": a, "b": b, "sum": a + b} for a, b in pairs]
lab.chat("sums", "What is {{a}} + {{b}}?", n=8, over=sums, tools=[calculator], seed=1, max_tokens=20)
def score(trajectory, answer, messages, row):
    called = any(message["role"] == "tool" for message in messages)
    return {"called": 0.2 * called, "right": 0.8 * float(str(row["sum"]) in answer)}
lab.reward("sums", score)
"""
TRAINING = """
from random import Random
from string import ascii_lowercase
random = Random(0)
letters = [" ".join(random.sample(ascii_lowercase, 4)) for _ in range(96)]
rows = [{"letters": text, "sorted": " ".join(sorted(text.split()))} for text in letters]
lab.chat("sorting", "Sort these letters: {{letters}}", n=8, over=rows, max_tokens=16, seed=1)
lab.reward("sorting", lambda trajectory, answer, messages, row: float(answer == row["sorted"]))
lab.train("sorting", {"learning_rate": 1e-3}, say=lambda line: None)
"""
COMPARISON = """
held_out = [{"letters": t, "sorted": " ".join(sorted(t.split()))}
            for t in (" ".join(random.sample(ascii_lowercase, 4)) for _ in range(48))]
for _ in range(6):
    lab.chat("sorting")
    lab.reward("sorting", lambda trajectory, answer, messages, row: float(answer == row["sorted"]))
    lab.train("sorting", say=lambda line: None)
lab.compare("sorting", over=held_out, n=4)
"""
FORM = """
lab.train_form("sorting:2", {"learning_rate": 0.005, "ppo": True, "epsilon": 0.2})
"""
DRY_RUN = """
lab.check("sorting:2")
"""
SEARCH = """
lab.search("capital Peru")
"""
LOOP = """
right = lambda trajectory, answer, messages, row: float(answer == row["sorted"])
lab.model("lab/loop")
lab.loop("letters", "Sort these letters: {{letters}}", right, over=rows, held_out=held_out, jobs=6, every=2,
         max_tokens=16, options={"learning_rate": 1e-3}, say=lambda line: None)
"""
RUNS = """
for name, rate in (("lab/slow", 2e-4), ("lab/fast", 3e-3)):
    lab.model(name)
    lab.loop(f"letters-{name[4:]}", "Sort these letters: {{letters}}", right, over=rows[:48], held_out=held_out,
             jobs=10, every=1, max_tokens=16, options={"learning_rate": rate}, say=lambda line: None)
lab.runs("lab/slow", "lab/fast")
"""
LISTS = """
from IPython.display import display
display(lab.collections(), lab.jobs(), lab.models.list())
"""


def rewards(shown: Locator) -> Locator:
    view = shown.locator(".rl-rewards").last
    view.locator(".rl-disagrees").first.click()
    return view


def group(shown: Locator) -> Locator:
    view = shown.locator(".rl-view-groups").last
    expect(view.locator(".rl-body").first).not_to_be_empty()  # what is near is drawn a moment later
    return view


def training(shown: Locator) -> Locator:
    view = shown.locator(".rl-job").last
    expect(view.locator(".rl-state")).to_have_text("succeeded")
    return view


def form(shown: Locator) -> Locator:
    view = shown.locator(".rl-form").last
    expect(view.locator(".rl-headline")).not_to_be_empty()
    return view


def lists(shown: Locator) -> Locator:
    expect(shown.locator(".rl-panel")).to_have_count(3)
    return shown


def panel(shown: Locator) -> Locator:
    shown.page.evaluate("() => document.fonts.ready")
    return shown.locator(".rl-panel").last


def runs(shown: Locator) -> Locator:
    view = shown.locator(".rl-panel:has(.rl-runs)")
    shown.page.set_viewport_size({"width": WIDTH, "height": TALL})
    view.locator(".rl-large").scroll_into_view_if_needed()  # only what is near is drawn
    view.locator(".rl-large .u-over").hover(position={"x": 700, "y": 100})
    expect(view.locator(".rl-card")).to_have_count(2)
    return view


def comparison(shown: Locator) -> Locator:
    view = panel(shown)
    view.locator("summary").first.click()
    return view


# In this order in one kernel: a picture shows what the cells before it have made.
PICTURES: dict[str, tuple[str, Callable[[Locator], Locator]]] = {
    "rewards_view": (REWARDS, rewards),
    "group_view": (GROUP, group),
    "training_view": (TRAINING, training),
    "comparison_view": (COMPARISON, comparison),
    "form_view": (FORM, form),
    "dry_run_view": (DRY_RUN, panel),
    "search_view": (SEARCH, panel),
    "loop_view": (LOOP, panel),
    "runs_view": (RUNS, runs),
    "lists_view": (LISTS, lists),
}


def save(picture: bytes, path: Path) -> None:
    """A picture of few colours, which is what a page in a notebook has."""
    widget = ImageOps.crop(Image.open(io.BytesIO(picture)).convert("RGB"), (0, 0, 0, BORDER))
    framed = ImageOps.expand(widget, MARGIN, "white")
    few = framed.quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    size = path.stat().st_size
    assert size <= LARGEST, f"{path.name} has {size:,} bytes"
    print(f"{path.name}: {few.width} x {few.height}, {size:,} bytes")


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="rolloutlab-") as folder, sync_playwright() as playwright:
        home = {"ROLLOUTLAB_HOME": f"{folder}/lab", "ROLLOUTLAB_LINGER": "1", "OMP_NUM_THREADS": "1"}
        jupyter = Jupyter(Path(folder), home)
        chromium = os.environ.get("ROLLOUTLAB_CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=SCALE)
        try:
            page = NotebookPage(context.new_page(), jupyter.url, jupyter.notebooks / "views.ipynb", "lab")
            page.open()
            page.narrow(WIDTH)
            page.run("import rolloutlab; lab = rolloutlab.lab()")
            for name, (code, find) in PICTURES.items():
                shown = page.run(code)
                if name in names or not names:
                    save(find(shown).screenshot(animations="disabled"), Path(__file__).with_name(f"{name}.png"))
        finally:
            browser.close()
            jupyter.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
