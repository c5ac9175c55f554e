"""A notebook in a browser, as the tests handle it."""

import json
import os
import re
from pathlib import Path

from playwright.sync_api import ConsoleMessage, Error, Locator, Page, expect

LONGEST = 240_000
"""Milliseconds that a page or a cell may take."""
PAGE_ERROR = "page error"
LEFT = "[anywidget] Failed to initialize model."
"""What a view says that was still loading when its notebook was closed, also later, to the next one in the page."""
HARNESS = Path(__file__).with_name("notebook.js")
URLS = {"lab": "{server}/lab/workspaces/{name}/tree/{name}.ipynb", "notebook7": "{server}/notebooks/{name}.ipynb"}
FIRST = {"cell_type": "code", "id": "first", "execution_count": None, "metadata": {}, "outputs": [], "source": ""}
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
EMPTY = {"cells": [FIRST], "metadata": {"kernelspec": KERNEL}, "nbformat": 4, "nbformat_minor": 5}


class NotebookPage:
    """One notebook with its kernel, in JupyterLab (`lab`) or Notebook 7 (`notebook7`).

    `page` is playwright's, `path` the notebook's file, `said` what the page has complained of so far. Cells count from
    0, and the last one is always empty. token: of a server that asks for one. `is_as_new` says whether the page is fit
    for another notebook.
    """

    def __init__(self, page: Page, server: str, path: Path, front_end: str, token: str = "") -> None:
        self.page = page
        self.path = path
        self.front_end = front_end
        self._sessions = f"{server}/api/sessions"
        self._url = URLS[front_end].format(server=server, name=path.stem) + (f"?token={token}" if token else "")
        self._signed = {"Authorization": f"token {token}"} if token else {}
        self.said: list[str] = []
        self.is_as_new = True
        self._is_open = page.url != "about:blank"
        page.set_default_timeout(LONGEST)
        if not self._is_open:
            page.add_init_script(path=HARNESS)
            page.on("dialog", lambda dialog: dialog.accept())  # leaving a page with changes
        self._listening = {"console": self._console, "pageerror": self._page_error}
        for event, listener in self._listening.items():
            page.on(event, listener)

    def open(self) -> None:
        """Make the file, open it, and wait until its kernel is idle.

        In a page that has JupyterLab already, it takes the place of the notebook there.
        """
        self.path.write_text(json.dumps(EMPTY))
        wanted = {"path": self.path.name, "name": self.path.name, "type": "notebook", "kernel": {"name": "python3"}}
        answer = self.page.request.post(
            self._sessions, data=wanted, headers=self._signed
        )  # the kernel starts while the page loads
        assert answer.ok, answer.text()
        self._running = answer.json()["id"]
        if self._is_open:
            self.page.evaluate("path => window.harness.open(path)", self.path.name)
        else:
            self.page.goto(self._url)
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Wait until the page has been restored and the kernel waits for a cell."""
        self.page.wait_for_function("window.harness.idle()")

    def run(self, code: str, *, fails: bool = False) -> Locator:
        """Execute code in the last cell, wait until it has ended, and return its outputs.

        Raises:
            AssertionError: the cell ended with an error and was not to, or the other way round.
        """
        outputs = self.start(code)
        self.wait_until_ended()
        error = self.page.evaluate("number => window.harness.error(number)", self._number)
        assert bool(error) == fails, error or "the cell has not failed"
        return outputs

    def start(self, code: str) -> Locator:
        """Execute code in the last cell and return, while it may still run, where its outputs appear."""
        self._number = self.page.evaluate("code => window.harness.start(code)", code)
        return self.outputs(self._number)

    def wait_until_ended(self) -> None:
        """Wait until the cell that was started last has ended."""
        self.page.wait_for_function("number => window.harness.hasEnded(number)", arg=self._number)

    def outputs(self, number: int) -> Locator:
        """Everything that the cell of this number shows; it is found again after a reload."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(number).locator(".jp-Cell-outputArea")

    def text_of(self, where: Locator) -> str:
        """The text that is to be seen there, without the prompts of outputs."""
        return where.evaluate("element => window.harness.text(element)")

    def reload(self) -> None:
        """Save the notebook and load the page again; the kernel lives on, and so do the objects that widgets show."""
        self.page.evaluate("() => window.harness.panel().context.save()")
        self.page.goto(self._url)
        self.wait_until_idle()

    def reload_now(self) -> None:
        """The same while a cell runs: wait until the notebook is there, and not for its kernel.

        JupyterLab may restore its tabs after that, so the page is not fit for another notebook.
        """
        self.is_as_new = False
        self.page.evaluate("() => window.harness.panel().context.save()")
        self.page.goto(self._url)
        self.page.wait_for_function("() => window.harness.panel()?.context.isReady")

    def show(self, path: Path) -> None:
        """Open another notebook in place of this one, with a kernel of its own."""
        self.is_as_new = False
        self.page.goto(self._url.replace(self.path.stem, path.stem))
        self.wait_until_idle()

    def refuse(self, requests: re.Pattern[str] | str) -> None:
        """Let requests to these addresses fail, until the end of the test."""
        self.is_as_new = False
        self.page.route(requests, lambda route: route.abort())

    def restart_kernel(self) -> None:
        """Begin with an empty kernel, keeping the page and what it shows."""
        self.page.evaluate("() => window.harness.panel().sessionContext.restartKernel()")
        self.wait_until_idle()

    def theme(self, name: str) -> None:
        """Change the theme, as `JupyterLab Dark`, until the end of the test."""
        self.is_as_new = False
        self.page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", name)
        expect(self.page.locator("body")).to_have_attribute("data-jp-theme-name", name)

    def narrow(self, width: int = 480) -> None:
        """Make the window this many CSS pixels wide, all of it for the notebook."""
        self.is_as_new = False
        self.page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
        height = (self.page.viewport_size or {"height": 900})["height"]
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.wait_for_function("width => window.harness.width() <= width", arg=width)

    def faint(self, where: Locator) -> list[str]:
        """The texts there that are hard to read on what they stand on, with their contrast: below 4.5 to 1."""
        found: list[str] = where.evaluate("element => window.harness.faint(element)")
        return found

    def screenshot(self, name: str, of: Locator | None = None) -> Path:
        """A picture of the window, or of one element: NAME-FRONT_END.png among the screenshots."""
        path = screenshots() / f"{name}-{self.front_end}.png"
        (of or self.page).screenshot(path=path, animations="disabled")
        return path

    def errors(self) -> list[str]:
        """What our own modules have thrown or reported so far; Notebook 7 throws a few things by itself."""
        self.page.evaluate("null")  # whatever the page said before has arrived when this is answered
        return [text for text in self.said if _is_ours(text) and not (self._is_open and LEFT in text)]

    def keep(self, name: str) -> str:
        """Keep NAME.png and NAME.log of a failed test; returns what the page has complained of."""
        try:
            self.page.screenshot(path=screenshots() / f"{name}.png", timeout=LONGEST / 4)
        except Error as error:
            self.said.append(f"no screenshot: {error}")
        (screenshots() / f"{name}.log").write_text(said := "\n".join(self.said))
        return said

    def describe(self) -> str:
        """What the page has open and how its kernel is, as JSON: why a test waited in vain."""
        try:
            return json.dumps(self.page.evaluate("() => window.harness.describe()"))
        except Error as error:
            return f"the page does not answer: {error.message}"

    def close(self) -> None:
        """End the kernel and close the page."""
        self._end_kernel()
        self.page.close()

    def leave(self) -> Page:
        """End the kernel and close the notebook alone; returns the page, for another one."""
        for event, listener in self._listening.items():
            self.page.remove_listener(event, listener)
        self.page.evaluate("() => window.harness.close()")
        self._end_kernel()
        return self.page

    def _end_kernel(self) -> None:
        self.page.request.delete(f"{self._sessions}/{self._running}", headers=self._signed)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.said.append(f"{message.type}: {message.text} ({message.location.get('url')})")

    def _page_error(self, error: Error) -> None:
        self.said.append(f"{PAGE_ERROR}: {error.stack or error.message}")


def _is_ours(text: str) -> bool:
    """Whether one of our modules is to blame: anywidget loads them from blob: addresses and reports what they throw.

    Something thrown that is no Error has no address at all, and neither have requests that a restart cancels.
    """
    if text.startswith(f"{PAGE_ERROR}: ") and "://" not in text:
        return "Canceled future" not in text
    is_extension = re.search(r"/extensions/(anywidget|rolloutlab)/", text) is not None
    return "blob:" in text or (is_extension and not text.startswith("warning: "))


def screenshots() -> Path:
    """The folder of the screenshots, made when it is wanted."""
    folder = Path(os.environ.get("ROLLOUTLAB_SCREENSHOTS") or Path(__file__).parent / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
