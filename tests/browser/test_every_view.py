"""Every view in both themes and at three widths: axe-core finds nothing, nothing drifts sideways, answers are read."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

import rolloutlab

pytestmark = [pytest.mark.process, pytest.mark.parametrize("front_end", ["lab"])]

AXE = Path(rolloutlab.__file__).parent.parent.parent / "node_modules" / "axe-core" / "axe.min.js"
"""`npm ci` puts it there, which every editable install runs."""
BEGIN = """\
%load_ext rolloutlab
import rolloutlab
lab = rolloutlab.lab()
countries = [{"country": each} for each in ("France", "Peru", "Chad", "Mali")]
held_out = [{"country": each} for each in ("Cuba", "Oman")]"""
CHAT = """\
%%chat viewed --over countries --seed 1 -n 4
system: Answer with the name of the city only, or in **bold** words.
user: What is the capital of {{country}}?"""
REWARD = """\
%%reward viewed
return {"length": len(answer) / 40, "place": int(trajectory.name[-1]) / 4 if country != "Mali" else 0}"""
VIEWS = {
    "collection": "lab.collection('viewed')",
    "rewards": "%rewards viewed",
    "dry run": "%%train viewed --dry-run\n",
    "form": "%%train viewed --form\nlearning_rate: 0.001",
    "job": "%%train viewed\nepochs: 4",
    "comparison": "%compare viewed --over held_out -n 2",
    "collections": "%collections",
    "jobs": "%jobs",
    "models": "%models",
    "search": "%search capital --where 'reward > 0'",
    "sign-ins": "%whoami",
    "tools": "%tools",
    "connection": "%connect",
}
THEMES = ("JupyterLab Light", "JupyterLab Dark")
WIDTHS = (1400, 900, 390)
FINDINGS = """async () => {
    const found = [];
    for (const element of document.querySelectorAll(".jp-Notebook .rl")) {
        if (element.parentElement.closest(".rl") || !element.getClientRects().length) continue;
        const { violations } = await axe.run(element, { resultTypes: ["violations"] });
        for (const { id, nodes } of violations)
            for (const { target, failureSummary } of nodes) found.push([id, target.join(" "), failureSummary]);
    }
    return found;
}"""
SIDEWAYS = """() => [...document.querySelectorAll(".jp-Notebook .jp-OutputArea-output")]
    .filter((each) => each.querySelector(".rl") && each.scrollWidth > each.clientWidth + 1)
    .map((each) => [each.querySelector(".rl").className, each.scrollWidth, each.clientWidth])"""
READ = """() => [...document.querySelectorAll(".jp-Notebook article .rl-body")]
    .filter((each) => each.textContent.trim() && each.getClientRects().length)
    .map((each) => each.getBoundingClientRect().width)"""


@pytest.fixture
def shown(notebook: Any) -> dict[str, int]:
    """The cells of the views, by name."""
    for cell in (BEGIN, CHAT, REWARD):
        notebook.run(cell)
    cells = {}
    for name, code in VIEWS.items():
        expect(notebook.run(code).locator(".rl:visible").first).to_be_visible()
        cells[name] = notebook._number
    expect(notebook.outputs(cells["job"]).locator(".rl-state")).to_have_text("succeeded")
    return cells


def test_axe_finds_nothing_and_nothing_drifts_in_both_themes_and_at_three_widths(notebook, shown):
    notebook.page.evaluate(AXE.read_text(encoding="utf-8"))
    found = []
    for theme in THEMES:
        notebook.theme(theme)
        for width in WIDTHS:
            notebook.narrow(width)
            for name, number in shown.items():
                cell = notebook.outputs(number)
                cell.scroll_into_view_if_needed()
                notebook.screenshot(f"view-{name.replace(' ', '-')}-{width}-{theme.split()[1].lower()}", of=cell)
            findings = notebook.page.evaluate(SIDEWAYS) + notebook.page.evaluate(FINDINGS)
            found += [(theme, width, *each) for each in findings]
    assert not found, "\n".join(map(repr, found))
    notebook.outputs(shown["collection"]).scroll_into_view_if_needed()
    expect(notebook.outputs(shown["collection"]).locator("article .rl-body").first).not_to_be_empty()
    widths = notebook.page.evaluate(READ)
    assert min(widths) >= 200, "a completion cannot be read at 390 pixels"
