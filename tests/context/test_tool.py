"""Tools of a context server as a notebook shows them."""

import pytest

from rolloutlab.context.tool import ContextTool, ContextTools
from rolloutlab.errors import NotFoundError


async def never(_arguments):
    raise AssertionError


SCHEMA = {"type": "object", "properties": {"query": {}, "limit": {}}, "required": ["query"]}
FIND = ContextTool("find", "Finds records. In any order.", SCHEMA, never)
DOCS = ContextTools("docs", "https://tools.example/mcp", [FIND, ContextTool("ping", "", {}, never)])


def test_tools_are_found_by_name_and_by_place():
    assert DOCS["find"] is DOCS[0] is FIND
    assert len(DOCS) == len(list(DOCS)) == 2
    with pytest.raises(NotFoundError, match="docs has no tool 'fnd'") as error:
        DOCS["fnd"]
    assert error.value.hint == "find, ping"


def test_they_are_listed_with_their_arguments_and_first_sentence():
    assert repr(DOCS).splitlines() == [
        "docs: 2 tools of https://tools.example/mcp",
        "  find(query, limit?)",
        "      Finds records",
        "  ping()",
    ]


def test_what_a_stranger_says_is_text():
    hostile = ContextTool("x", "<script>alert(1)</script>\x1b[31m\u202e " + "long " * 100, {"properties": 3}, never)
    shown = ContextTools("docs", "https://tools.example/mcp", [hostile])
    assert "<script>" not in shown._repr_html_()
    assert all(len(line) <= 80 and line.isprintable() for line in repr(shown).splitlines())
