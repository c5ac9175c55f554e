"""HTML as a tree of nodes, from which the browser makes elements, so that a live view never parses markup."""

from html.parser import HTMLParser
from typing import Any

from rolloutlab.widgets.html import Html

Tree = list[Any]
"""Texts, and elements as `[tag, attributes, children]`."""
_VOID = {"br", "img", "wbr"}


def tree(html: Html | str) -> Tree:
    """Read HTML that the kit has made into nodes."""
    return _Reader(html).nodes


class _Reader(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.nodes: Tree = []
        self._open: list[Tree] = [self.nodes]
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        children: Tree = []
        self._open[-1].append([tag, {name: value or "" for name, value in attrs}, children])
        if tag not in _VOID:
            self._open.append(children)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].append(data)
