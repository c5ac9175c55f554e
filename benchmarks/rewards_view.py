"""The rewards view of 100,000 trajectories in a real JupyterLab: how soon it shows, answers an edit, and is sorted.

The peer is ipydatagrid with the same rows in the same notebook; its advantages are computed by the same code in a
callback of the kernel. Every figure is taken in the browser: from the cell or the key that asks to the frame that shows
the answer. Its frame is made before, and has the advantages of the first paint already.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from goals import Goal, conclude
from measure import ROOT, peer_python
from mock_service import completion
from playwright.sync_api import Browser, sync_playwright

from rolloutlab.api.wire.chat import ChatCompletion, UserMessage
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Arrival, NewGroup, Ref, Score

sys.path.insert(0, str(ROOT))
from tests.browser.conftest import FLAGS
from tests.browser.jupyter import Jupyter
from tests.browser.notebook import NotebookPage

GROUPS, MEMBERS = 12_500, 8
TOTAL = GROUPS * MEMBERS
OPENED, REPEATS = 3, 7

PREPARE = """
%load_ext rolloutlab
import rolloutlab
lab = rolloutlab.lab()
frame = lab.rewards("letters").to_frame()[["reward", "advantage", "answer", "prompt", "source", "tokens"]]
"""
PREPARE_PEER = """
from ipydatagrid import DataGrid
from rolloutlab.objective.advantages import group_advantages

def edited(change):
    if change["column"] != "reward":
        return
    first = change["row"] // 8 * 8
    rewards = grid.data["reward"].iloc[first : first + 8].tolist()
    for i, advantage in enumerate(group_advantages(rewards)):
        grid.set_cell_value_by_index("advantage", first + i, advantage)
"""
PEER = """
grid = DataGrid(frame, editable=True, layout={"height": "460px"}, base_column_size=90)
grid.on_cell_change(edited)
grid
"""
PEER_SORT = 'grid.transform([{"type": "sort", "column": "reward", "desc": DESC}])'

WATCH = """([code, event, reads]) => new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`nothing else was seen after ${code ?? event}`)), 30_000);
    const seen = reads.map((read) => new Function(`return (${read})`)());
    const before = seen.map((read) => read());
    const found = seen.map(() => null);
    let begun = null;
    const look = () => {
        for (const [i, read] of begun === null ? [] : seen.entries()) {
            if (found[i] !== null || read() === before[i]) continue;
            found[i] = 0;
            requestAnimationFrame(() => { found[i] = performance.now() - begun; });  // the frame that shows it
        }
        if (found.every((milliseconds) => milliseconds)) resolve(found);
        else requestAnimationFrame(look);
    };
    if (code) { begun = performance.now(); window.harness.start(code); }
    else {
        const [kind, key] = event.split(" ");
        document.addEventListener(kind, (told) => { if (!key || told.key === key) begun ??= performance.now(); }, true);
    }
    requestAnimationFrame(look);
})"""
"""Milliseconds from the start of a cell, or from an event, until what each of `reads` sees is another and painted."""

ROWS = """() => {
    const grid = [...document.querySelectorAll('.rl-grid')].at(-1);
    return [...(grid?.querySelectorAll('.rl-figure, .tabulator-row code') ?? [])].map((e) => e.textContent).join();
}"""
"""Names and advantages that the newest grid shows."""
CANVAS = """() => {
    const canvas = [...document.querySelectorAll('.lm-DataGrid')].at(-1)?.querySelector('canvas');
    if (!canvas?.width) return '';
    const pixels = canvas.getContext('2d').getImageData(LEFT, 44, WIDTH, 380);
    return [...pixels.data].reduce((sum, value) => (31 * sum + value) >>> 0, 0);
}"""
"""A checksum of a part of the peer's canvas, below its header."""
_GRIDS = "() => [...document.querySelectorAll('.rl-grid')].filter((grid) => grid.querySelector('WANTED')).length"
PAINTED = _GRIDS.replace("WANTED", ".tabulator-row code")
"""How many grids show rows."""
COMPLETE = _GRIDS.replace("WANTED", ".rl-figure")
"""How many grids show advantages."""
FIGURES = "() => document.querySelectorAll('.rl-rewards .rl-band').length"
"""How many views show the figures of all their rows."""
PEERS_PAINTED = """() => [...document.querySelectorAll('.lm-DataGrid')].filter((grid) => {
    const canvas = grid.querySelector('canvas');
    return canvas?.width && new Set(canvas.getContext('2d').getImageData(91, 44, 500, 99).data).size > 8;
}).length"""
"""How many of the peer's canvases show text."""
BODY = CANVAS.replace("LEFT", "91").replace("WIDTH", "500")
ADVANTAGES = CANVAS.replace("LEFT", "181").replace("WIDTH", "89")


def fill(path: Path) -> None:
    """One collection of groups whose trajectories are the mock service's 50 tokens, all with rewards."""
    lab = Lab(path)
    prompt = [UserMessage(role="user", content="Sort these letters: d b a c")]
    choice = ChatCompletion.model_validate(completion()).choices[0]
    arrivals = [Arrival(position, [choice]) for position in range(MEMBERS)]
    collection = lab.open_collection("letters", {"model": "mock", "n": MEMBERS, "total": TOTAL})

    def put() -> None:
        for group in lab.add_groups(collection, [NewGroup(prompt, {"i": j}) for j in range(GROUPS)]):
            lab.put(group, arrivals, model="mock", step=0, sampling={"temperature": 1.0})

    lab.at_once(put)
    rows = lab.outlines.of(collection, None)
    named = [Ref(row.id, f"letters/{row.group}/{row.position}") for row in rows]
    lab.rewards.give([Score(one, one.id * 7919 % 97 / 97) for one in named], "function")
    lab.close()


class Watched:
    """A notebook, and how long it takes until something in it is another."""

    def __init__(self, notebook: NotebookPage) -> None:
        self.notebook = notebook
        self.page = notebook.page

    def after_cell(self, code: str, *reads: str) -> list[float]:
        """Seconds from the start of a cell until what each of `reads` sees has changed."""
        milliseconds = self.page.evaluate(WATCH, [code, None, reads])
        self.notebook.wait_until_idle()
        return [each / 1000 for each in milliseconds]

    def after(self, act: Callable[[], None], event: str, read: str) -> float:
        """Seconds from the event that an act ends with until what `read` sees has changed."""
        self.page.evaluate(f"(asked) => {{ window.seen = ({WATCH})(asked) }}", [None, event, [read]])
        act()
        [milliseconds] = self.page.evaluate("() => window.seen")
        self.notebook.wait_until_idle()
        return float(milliseconds) / 1000


def ours(watched: Watched) -> dict[str, float]:
    """Seconds of each figure, the median of a few."""
    page = watched.page
    opened = [watched.after_cell("lab.rewards('letters')", PAINTED, COMPLETE, FIGURES) for _ in range(OPENED)]
    grid = page.locator(".rl-grid").last
    grid.focus()

    def edit(value: str) -> Callable[[], None]:
        return lambda: (page.keyboard.type(value), page.keyboard.press("Enter"))[0]

    edits = [watched.after(edit(f"0.{i}5"), "keydown Enter", ROWS) for i in range(REPEATS)]
    head = grid.locator('.tabulator-col[tabulator-field="reward"] .tabulator-col-title')
    sorts = [watched.after(lambda: head.evaluate("title => title.click()"), "click", ROWS) for _ in range(REPEATS)]
    first, complete, above = zip(*opened, strict=True)
    return {**figures(first, complete, edits, sorts), "figures": median(above)}


def peers(watched: Watched) -> dict[str, float]:
    """The same of the peer."""
    page = watched.page
    first = [watched.after_cell(PEER, PEERS_PAINTED)[0] for _ in range(OPENED)]
    canvas = page.locator(".lm-DataGrid").last

    def edit(row: int) -> Callable[[], None]:
        def act() -> None:
            canvas.click(position={"x": 130, "y": 30 + 20 * row})
            page.keyboard.type(f"0.{row}7")  # what this row does not have from our edits
            page.keyboard.press("Enter")

        return act

    edits = [watched.after(edit(row), "keydown Enter", ADVANTAGES) for row in range(REPEATS)]
    sorts = [watched.after_cell(PEER_SORT.replace("DESC", str(bool(i % 2))), BODY)[0] for i in range(REPEATS)]
    return figures(first, first, edits, sorts)


def figures(*measured: Sequence[float]) -> dict[str, float]:
    return dict(zip(("first rows", "advantages", "edit", "sort"), map(median, measured), strict=True))


def opened(browser: Browser, jupyter: Jupyter, name: str, *prepare: str) -> Watched:
    """A notebook of its own for each side."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    notebook = NotebookPage(page, jupyter.url, jupyter.notebooks / f"{name}.ipynb", "lab")
    notebook.open()
    for code in prepare:
        notebook.run(code)
    return Watched(notebook)


def main() -> int:
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        fill(folder / "lab" / "lab.db")
        jupyter = Jupyter(folder, {"ROLLOUTLAB_HOME": str(folder / "lab")}, python=peer_python("grid"))
        try:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            mine = ours(opened(browser, jupyter, "ours", PREPARE))
            theirs = peers(opened(browser, jupyter, "peers", PREPARE, PREPARE_PEER))
            browser.close()
        finally:
            jupyter.stop()
    print(f"{'figures':10} {1000 * mine['figures']:6.0f} ms from the cell; ipydatagrid has none")
    for what, peer in theirs.items():
        seconds = mine[what]
        print(f"{what:10} {1000 * seconds:6.0f} ms; ipydatagrid {1000 * peer:6.0f} ms: {seconds / peer:.2f} of that")
    goals = {"first rows": 0.5, "edit": 0.1, "sort": 0.5}
    return conclude([Goal(f"{what.replace(' ', '_')}_seconds", mine[what], "<=", goal) for what, goal in goals.items()])


if __name__ == "__main__":
    sys.exit(main())
