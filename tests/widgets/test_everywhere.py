"""Every view where no script runs, as in nbconvert, a terminal or a page on GitHub; and that none tells a secret."""

import ast
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import rolloutlab
from rolloutlab.api.wire.chat import UserMessage
from rolloutlab.session import Session
from rolloutlab.store.models import NewGroup, Score
from rolloutlab.trajectories.comparison import Side, compare_sides
from rolloutlab.widgets.base import NotebookView
from rolloutlab.widgets.html import for_notebook
from rolloutlab.widgets.kit.parts import style
from tests.labs import lab_with, without_logprobs

HOSTILE = "<script>acted()</script></td></details><img src=x onerror=acted()>& \x1b[31m \u202eabc"
VIEWS = ("collection", "group", "rewards", "form", "job", "run")
VOID = {"br", "hr", "img", "input", "meta", "link", "path", "line", "circle", "rect", "polyline", "polygon"}

ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"texts": {}},
    {"texts": {"learning_rate": "fast"}},
    {"name": "hostile/0/0"},
    {"position": 0},
    {"position": 0, "seat": 0},
    {"at": 0},
    {"names": ["hostile/0/0"], "reward": "x"},
    {"step": 0, "kind": "best"},
    {"version": []},
]


class Page(HTMLParser):
    """What a browser would make of it: `tags`, `texts`, and in `wrong` what is not closed as it was opened."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.wrong: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        self.wrong += self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self._open or self._open.pop() != tag:
            self.wrong.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def shown(session: Session) -> dict[str, NotebookView]:
    """Each view, of a session that has a token; the first three of a collection in which all text is hostile."""
    session.chat("capitals", "Capital?", n=4, max_tokens=4, seed=1)
    prompt = NewGroup([UserMessage(role="user", content=HOSTILE)], {"a": HOSTILE})
    lab_with(session.store, [HOSTILE, HOSTILE], name="hostile", prompts=[prompt], make=without_logprobs, model=HOSTILE)

    def score(trajectory: Any, answer: str, messages: Any, row: Any) -> dict[str, float]:
        return {HOSTILE: float(trajectory.name[-1])}

    session.reward("capitals", score)
    session.reward("hostile", score)
    form = session.train_form("capitals", {"learning_rate": HOSTILE})
    job = session.train("capitals", wait=False, say=lambda _: None).wait(progress=False)
    return {
        "collection": session.collection("hostile"),
        "group": session.collection("hostile/0"),
        "rewards": session.rewards("hostile"),
        "form": form,
        "job": job,
        "run": session.runs(job.model),
    }


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_reads_without_scripts_and_style_sheets(shown, name):
    html = shown[name]._repr_html_()
    page = Page(html)
    assert page.wrong == []
    assert html.count("<style>") <= 1
    html = html.replace(style(), "")
    page = Page(html)
    assert not page.tags & {"script", "style", "link", "img", "iframe", "object", "embed"}
    assert not {attribute for attribute in page.attributes if attribute.startswith("on")} | page.attributes & {"src"}
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", html)
    if name in ("collection", "group", "rewards"):
        assert "<script>acted()</script></td></details><img src=x onerror=acted()>& ␛[31m ⟨202e⟩abc" in page.text


@pytest.mark.parametrize("sides", [2, 3])
def test_a_comparison_reads_without_scripts_and_opens_to_what_was_written(session, sides):
    prompts = [NewGroup([UserMessage(role="user", content=f"{HOSTILE} {i}")], {"a": HOSTILE}) for i in range(2)]
    compared = []
    for side in range(sides):
        answers = [[f"{HOSTILE} and {side} more"], ["all the same"]]
        options = {"name": f"hostile.{side}", "prompts": prompts, "rewards": [side / 2, 0.5], "make": without_logprobs}
        made = lab_with(session.store, *answers, **options, model=HOSTILE)
        scores = [Score(t, side / 2, {HOSTILE: side / 2}) for t in session.store.groups(made)[0].trajectories]
        session.store.rewards.give(scores, "function")
        compared.append(Side(f"{HOSTILE}@{side}", session.collection(made.name)))
    shown = compare_sides(HOSTILE, compared, [(set(), [HOSTILE])] * (sides - 1), None)
    html = shown._repr_html_()
    page = Page(html)
    assert page.wrong == []
    assert not page.tags & {"script", "link", "img", "iframe", "object", "embed"}
    assert not {attribute for attribute in page.attributes if attribute.startswith("on")} | page.attributes & {"src"}
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", html + repr(shown))
    assert page.text.count(" and 1 more") == 1
    assert page.text.count(" and 0 more") == sides - 1


def test_no_html_of_ours_is_read_by_mathjax() -> None:
    """Every class of the package that has HTML, and every table: only `for_notebook` makes their root."""
    package = Path(rolloutlab.__file__).parent
    texts = {path: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    trees = [ast.parse(text) for text in texts.values() if "def _repr_html_" in text]
    methods = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    html = [ast.unparse(node) for node in methods if node.name == "_repr_html_"]
    assert len(html) >= 14
    assert [code for code in html if "for_notebook(" not in code] == []
    made = re.compile(r"[^(]pd\.DataFrame\(")  # all but the class that derives from it
    assert [path for path, text in texts.items() if made.search(text)] == []
    assert for_notebook("$5").startswith('<div class="tex2jax_ignore mathjax_ignore">')


@pytest.mark.parametrize("name", VIEWS)
def test_the_text_of_a_view_is_stable_and_has_no_address_of_memory(shown, name):
    text = repr(shown[name])
    assert text == repr(shown[name])
    assert shown[name]._repr_html_() == shown[name]._repr_html_()
    assert " at 0x" not in text
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", text)


@pytest.mark.parametrize("name", VIEWS)
def test_what_a_browser_is_told_has_no_secret(shown, session, name):
    token = session.settings.service.token
    assert token
    view = getattr(shown[name], "_view", shown[name])  # what a collection shows is a view of its own
    response = [view.state(), view.state(), repr(shown[name]), shown[name]._repr_html_()]
    response += [view.answer({"id": 1, "call": call, "args": args}) for call in view.calls() for args in ARGUMENTS]
    assert token not in json.dumps(response, ensure_ascii=False)
