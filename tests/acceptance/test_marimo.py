"""Views in marimo, driven by Chromium: as live as in a Jupyter notebook."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from rolloutlab.session import Session
from rolloutlab.settings import Settings

ROOT = Path(__file__).parents[2]
NOTEBOOK = Path(__file__).with_name("marimo_views.py")
CHROMIUM = os.environ.get("ROLLOUTLAB_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[str]:
    """A `marimo run` of the notebook."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--headless", "--no-token", "--host", "127.0.0.1", "--port", str(port)]
    command = [sys.executable, "-m", "marimo", "run", *options, str(NOTEBOOK)]
    environment = {**os.environ, "ROLLOUTLAB_HOME": str(home), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with (
        (home / "log").open("wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment) as process,
    ):
        try:
            if not any("http://" in line for line in process.stdout):  # it says where it listens, or ends
                pytest.fail(f"marimo ended at its start: {(home / 'log').read_text()}")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=240)


@pytest.fixture(scope="module")
def page(server: str) -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt-get install chromium, or set ROLLOUTLAB_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 1400})
        page.set_default_timeout(60_000)
        expect.set_options(timeout=60_000)
        page.goto(server)
        yield page
        browser.close()


def test_each_view_is_shown(page):
    expect(page.locator(".rl-view-groups article").first).to_contain_text("Paris")
    expect(page.locator(".rl-rewards .tabulator-row")).to_have_count(4)
    expect(page.locator(".rl-job .rl-state")).to_have_text("succeeded")
    expect(page.locator(".rl-job canvas")).to_have_count(3)
    page.screenshot(path=os.environ.get("ROLLOUTLAB_MARIMO_SCREENSHOT", os.devnull), type="png", full_page=True)


def test_an_edit_is_stored_and_seen_by_the_other_view(page, home):
    card = page.locator(".rl-view-groups article").first
    card.get_by_role("button", name="reward").press("Enter")
    card.get_by_label("reward of completion 0").fill("0.25")
    card.get_by_label("reward of completion 0").press("Enter")
    expect(card.get_by_role("button", name="reward 0.25")).to_be_visible()
    expect(page.locator(".rl-rewards .tabulator-row").first).to_contain_text("0.25")
    lab = Session(Settings(home=home))
    assert [trajectory.reward for trajectory in lab.collection("capitals").trajectories] == [0.25, 0, 1, 0]
    lab.close()
