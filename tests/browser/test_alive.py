"""Views without a kernel, beside a busy one and after a restart."""

import json
import re
import subprocess
import sys

import pytest
from playwright.sync_api import expect

from tests.labs import lab_with, without_logprobs

from .notebook import NotebookPage

pytestmark = pytest.mark.process

LOAD = "%load_ext rolloutlab\nimport rolloutlab\nlab = rolloutlab.lab()"
SHOWN = {"group": ".rl-view-groups article", "rewards": ".rl-rewards", "form": ".rl-form", "job": ".rl-job"}
"""Where the live views are."""
CURVE = 'src="data:image/svg+xml'
KERNELS = re.compile("/api/(kernels|sessions)([/?]|$)")
"""What a page asks for to have a kernel."""


@pytest.fixture(scope="package")
def scored(lab) -> str:
    """A scored collection."""
    lab.chat("alive", "Name {{thing}}.", n=4, over=[{"thing": "a city"}, {"thing": "a river"}], max_tokens=8, seed=1)
    lab.reward("alive", lambda trajectory, answer, messages, row: int(trajectory.name[-1]) / 4, say=lambda _: None)
    return "alive"


@pytest.fixture
def views(notebook, scored) -> dict[str, int]:
    """A notebook with each view, live; the cells by view."""
    notebook.run(LOAD)
    cells = {}
    for name, code in {
        "group": f"lab.collection('{scored}')",
        "rewards": f"lab.rewards('{scored}')",
        "form": f"lab.train_form('{scored}')",
        "job": f"lab.train('{scored}', {{'epochs': 3}}, say=lambda _: None)",
    }.items():
        expect(notebook.run(code).locator(SHOWN[name]).first).to_be_visible()
        cells[name] = notebook._number
    expect(notebook.outputs(cells["job"]).locator(".rl-state")).to_have_text("succeeded")
    return cells


def outputs(notebook: NotebookPage, number: int) -> list[dict]:
    """The saved outputs of a cell."""
    notebook.page.evaluate("() => window.harness.panel().context.save()")
    return json.loads(notebook.path.read_text())["cells"][number]["outputs"]


def saved(notebook: NotebookPage, number: int) -> str:
    """The saved HTML of a cell."""
    return "".join("".join(output["data"].get("text/html", "")) for output in outputs(notebook, number))


def wait_until_saved(notebook: NotebookPage, number: int, text: str) -> None:
    """Wait until the HTML of a cell has a text."""
    notebook.page.wait_for_function(
        """([number, text]) => window.harness.panel().content.widgets[number].model.outputs.toJSON()
            .some(({ data }) => [data["text/html"]].flat().join("").includes(text))""",
        arg=[number, text],
    )


def are_static(notebook: NotebookPage, views: dict[str, int]) -> None:
    """Each view is HTML: what it showed last, and nothing to press."""
    words = {"group": "alive/0", "rewards": "alive/1/3", "form": "Answers that train", "job": "succeeded"}
    for name, number in views.items():
        expect(notebook.outputs(number)).to_contain_text(words[name])
        expect(notebook.outputs(number).get_by_role("button")).to_have_count(0)
        expect(notebook.outputs(number)).not_to_contain_text("widget")
    expect(notebook.outputs(views["rewards"])).to_contain_text("Mean reward")
    curve = notebook.outputs(views["job"]).locator("figure img").first
    expect(curve).to_be_visible()
    assert curve.evaluate("image => image.decode().then(() => image.naturalWidth)")


def test_a_notebook_that_is_opened_again_shows_the_last_state_of_its_views(notebook, views, scored):
    group = notebook.outputs(views["group"])
    group.locator("article").first.get_by_role("button", name="reward").press("Enter")
    group.get_by_label("reward of completion 0").fill("0.875")
    group.get_by_label("reward of completion 0").press("Enter")
    expect(group.locator("article").first).to_contain_text("0.875")
    for name in ("group", "rewards"):
        wait_until_saved(notebook, views[name], "0.875")
    wait_until_saved(notebook, views["job"], CURVE)

    notebook.refuse(KERNELS)
    notebook.reload_now()
    are_static(notebook, views)
    notebook.screenshot("alive-no-kernel")


def test_an_untrusted_notebook_shows_the_last_state_of_its_views(notebook, views):
    outputs(notebook, 0)
    copy = notebook.path.with_stem(f"{notebook.path.stem}-copy")
    copied = json.loads(notebook.path.read_text())
    copied["metadata"]["sent"] = "by somebody else"  # what was signed is another notebook
    copy.write_text(json.dumps(copied))
    notebook.show(copy)
    assert not notebook.page.evaluate("() => window.harness.panel().content.widgets[1].model.trusted")
    are_static(notebook, views)
    bar = notebook.outputs(views["group"]).locator(".rl-groups-bar:not(.rl-fail, .rl-pass) > b").first
    assert bar.bounding_box()["height"] > 1, "the strip keeps its bars"
    notebook.screenshot("alive-untrusted")


def test_a_page_that_is_loaded_again_while_a_cell_runs_shows_live_views_at_once(notebook, views, scored):
    job = notebook.start(f"print('begun'); import time; display(lab.rewards('{scored}')); time.sleep(600)")
    expect(job.locator(".rl-rewards").first).to_be_visible()
    running = notebook._number
    notebook.reload_now()
    for name, number in {**views, "rewards": running}.items():
        expect(notebook.outputs(number).locator(SHOWN[name]).first).to_be_visible()
    reward = notebook.outputs(views["group"]).locator("article").first
    reward.get_by_role("button", name="reward").press("Enter")
    reward.get_by_label("reward of completion 0").fill("0.625")
    reward.get_by_label("reward of completion 0").press("Enter")
    expect(reward.get_by_role("button", name="reward 0.625")).to_be_visible()
    assert not notebook.page.evaluate("window.harness.idle()")
    notebook.screenshot("alive-busy")


def test_a_view_appears_in_its_cell_though_the_page_was_loaded_again_before(notebook, scored):
    notebook.run(LOAD)
    notebook.run("import pathlib, time")
    flag = notebook.path.with_suffix(".flag")
    shown = f"while not pathlib.Path({str(flag)!r}).exists(): time.sleep(0.05)\ndisplay(lab.rewards('{scored}'))"
    notebook.start(f"{shown}\ntime.sleep(600)")
    number = notebook._number
    notebook.reload_now()
    flag.touch()
    expect(notebook.outputs(number).locator(".rl-rewards").first).to_be_visible()
    notebook.reload_now()
    expect(notebook.outputs(number).locator(".rl-rewards").first).to_be_visible()
    assert not notebook.page.evaluate("window.harness.idle()")


@pytest.mark.parametrize("front_end", ["lab"])
def test_nothing_that_was_shown_goes_with_the_kernel(notebook, views, scored):
    group, form = (notebook.outputs(views[name]) for name in ("group", "form"))
    form.get_by_label("epsilon", exact=True).fill("0.3")
    place = group.get_by_label("group", exact=True)
    position = place.input_value()
    bars = group.locator(".rl-groups-bar:visible")  # a page that waited for the kernel has its HTML too, hidden
    expect(bars).to_have_count(2)
    rewards = group.locator(".rl-reward:visible").all_inner_texts()
    assert len(list(filter(None, rewards))) == 4
    notebook.restart_kernel()
    for number in views.values():
        expect(notebook.outputs(number).locator(".rl-ended")).to_be_visible()
        expect(notebook.outputs(number).get_by_role("button")).to_have_count(0)
    assert group.locator(".rl-reward").all_inner_texts() == rewards
    for reward in group.locator(".rl-reward").all():
        expect(reward).to_be_visible()
    expect(bars).to_have_count(2)
    expect(place).to_have_value(position)
    expect(place).to_be_visible()
    expect(form.get_by_label("epsilon", exact=True)).to_have_value("0.3")
    expect(form.get_by_label("epsilon", exact=True)).to_be_visible()
    expect(form.get_by_label("epsilon", exact=True)).to_be_disabled()
    notebook.screenshot("alive-restarted", group)


@pytest.mark.parametrize("front_end", ["lab"])
def test_a_converted_notebook_has_the_curves_of_a_job(notebook, views):
    wait_until_saved(notebook, views["job"], CURVE)
    outputs(notebook, 0)
    convert = [sys.executable, "-m", "nbconvert", "--to", "html", "--stdout", str(notebook.path)]
    page = subprocess.run(convert, capture_output=True, text=True, check=True).stdout
    assert page.count(CURVE) >= 2
    for curve in ("loss", "entropy", "grad_norm"):
        assert f"{curve}</" in page


def test_a_cell_that_a_view_suggests_is_put_below_it_by_a_click(notebook, lab):
    name = f"suggested-{notebook.front_end}"
    lab_with(lab.store, ["Paris", "Lyon"], name=name, rewards=[1, 0], make=without_logprobs)
    notebook.run(LOAD)
    saved = notebook.run("%collections")
    live = notebook.run(f"lab.rewards({name!r})")
    number = notebook._number
    notebook.run("'the cell below'")
    live.get_by_role("button", name=f"%logprobs {name}").press("Enter")
    assert sources(notebook)[number : number + 3] == [
        f"lab.rewards({name!r})",
        f"%logprobs {name}",
        "'the cell below'",
    ]
    assert notebook.page.evaluate("() => window.harness.panel().content.activeCellIndex") == number + 1
    saved.locator("summary", has_text=name).first.click()
    saved.locator("code.rl-cell", has_text=f"%rewards {name}").first.click()
    assert sources(notebook)[2:4] == [f"%rewards {name}", f"lab.rewards({name!r})"]


def sources(notebook: NotebookPage) -> list[str]:
    """The code of each cell."""
    found: list[str] = notebook.page.evaluate(
        "() => window.harness.panel().content.widgets.map(({ model }) => model.sharedModel.getSource())"
    )
    return found
