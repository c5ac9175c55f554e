"""One `jupyter lab`, one Chromium, one embedded service and one lab folder for every test in a browser."""

import os
import re
import shutil
from collections.abc import Generator, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from rolloutlab.session import Session
from rolloutlab.settings import Settings
from tests.forked import fork_embedded

from .jupyter import Jupyter
from .notebook import LONGEST, NotebookPage

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NO_CHROMIUM = "no Chromium: apt-get install chromium, or set ROLLOUTLAB_CHROMIUM"
LOG_CHARS = 4_000
OPENED = pytest.StashKey[NotebookPage]()
FAILED = pytest.StashKey[bool]()
REPORTS = pytest.StashKey[list[pytest.TestReport]]()


@pytest.fixture(scope="package")
def chromium() -> str:
    """The path of Chromium. Without one the tests skip, but in CI they fail."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("ROLLOUTLAB_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None and os.environ.get("CI") == "true":
        pytest.fail(NO_CHROMIUM)
    return found or pytest.skip(NO_CHROMIUM)


@pytest.fixture(scope="package")
def jupyter(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jupyter]:
    """The server, which may still be starting."""
    folder = tmp_path_factory.mktemp("browser")
    environment = {"ROLLOUTLAB_HOME": str(folder / "lab"), "ROLLOUTLAB_LINGER": "1", "OMP_NUM_THREADS": "1"}
    server = Jupyter(folder, environment)
    yield server
    server.stop()


@pytest.fixture(scope="package")
def lab(jupyter: Jupyter) -> Iterator[Session]:
    """The lab that all notebooks share, as this process sees it; it keeps the embedded service running."""
    yield from running(Session(Settings(home=jupyter.notebooks.parent / "lab", linger=1)))


def running(session: Session) -> Iterator[Session]:
    """A session, as long as it has its embedded service run."""
    with pytest.MonkeyPatch.context() as patch:
        fork_embedded(patch)
        session.embedded.address()
    yield session
    session.close()


@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        expect.set_options(timeout=LONGEST / 2)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """What the pages share: chiefly the cache, as JupyterLab is several megabytes."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context
    context.close()


@pytest.fixture(scope="package")
def spare(context: BrowserContext) -> Iterator[list[Page]]:
    """The page of the last test in JupyterLab, if it is fit for the next: loading it takes longer than most tests."""
    pages: list[Page] = []
    yield pages
    for page in pages:
        page.close()


@pytest.fixture(params=["lab", "notebook7"])
def front_end(request: pytest.FixtureRequest) -> str:
    """Each test runs in both; `@pytest.mark.parametrize("front_end", ["lab"])` has it run in one."""
    return request.param


@pytest.fixture
def notebook(
    request: pytest.FixtureRequest,
    jupyter: Jupyter,
    lab: Session,
    context: BrowserContext,
    spare: list[Page],
    front_end: str,
) -> Iterator[NotebookPage]:
    """A new notebook, alone in its page, its kernel idle."""
    name = re.sub(r"\W+", "-", request.node.name).strip("-")
    own = spare.pop() if spare and front_end == "lab" else context.new_page()
    page = NotebookPage(own, jupyter.url, jupyter.notebooks / f"{name}.ipynb", front_end)
    request.node.stash[OPENED] = page
    page.open()
    yield page
    if page.is_as_new and front_end == "lab" and not request.node.stash.get(FAILED, False):
        spare.append(page.leave())
    else:
        page.close()
    jupyter.forget_theme()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """An error in one of our own modules fails the test, whatever the test looked at."""
    yield
    if page := item.stash.get(OPENED, None):
        assert not page.errors()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test leaves a screenshot, and what the page complained of."""
    report = yield
    page = item.stash.get(OPENED, None)
    if report.failed and page and not page.page.is_closed():
        report.sections.append(("browser console", page.keep(f"failed-{page.path.stem}")))
        report.sections.append(("state of the page", page.describe()))
        if server := item.funcargs.get("jupyter"):
            report.sections.append(("end of the log of jupyter lab", server.log.read_text()[-LOG_CHARS:]))
        item.stash[FAILED] = True
    item.config.stash.setdefault(REPORTS, []).append(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How long the tests in a browser took, or that there were none, for all to see."""
    reports = config.stash.get(REPORTS, [])
    if any(report.skipped and NO_CHROMIUM in str(report.longrepr) for report in reports):
        terminalreporter.write_line(f"tests/browser: NOT RUN, {NO_CHROMIUM}", yellow=True, bold=True)
    elif reports:
        tests, seconds = len({report.nodeid for report in reports}), sum(report.duration for report in reports)
        terminalreporter.write_line(f"tests/browser: {tests} tests in {seconds:.0f} s")
