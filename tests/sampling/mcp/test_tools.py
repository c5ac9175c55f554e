"""Tools of a context server as a notebook shows them."""

import asyncio
from functools import partial

import pytest
from IPython.lib.pretty import pretty

from rolloutlab.api.wire.chat import FunctionToolCall
from rolloutlab.errors import NotFoundError
from rolloutlab.sampling.mcp.registry import McpRegistry
from rolloutlab.sampling.mcp.tools import AddedTools, ContextTool, ContextTools, ToolAnswer


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


def test_without_any_server_it_is_said_what_to_type_and_with_some_each_is_listed():
    assert repr(AddedTools()) == "no context server was added -> %tools add embedded as memory"
    assert "%tools add embedded as memory</code>" in AddedTools()._repr_html_()
    assert pretty(AddedTools([DOCS, DOCS])) == f"{DOCS!r}\n{DOCS!r}"
    assert AddedTools([DOCS])._repr_html_() == DOCS._repr_html_()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("one\ntwo 'three'", "one\ntwo 'three'"),
        ('{"a": [1, "é"]}', '{\n  "a": [\n    1,\n    "é"\n  ]\n}'),
        ("3", "3"),
        ("[" * 100_000, "[" * 100_000),
        ("\x1b[2Jcleared\u202e", "␛[2Jcleared⟨202e⟩"),
        ('["\\u001b[2J"]', '[\n  "\\u001b[2J"\n]'),
    ],
)
def test_an_answer_is_shown_as_it_reads_and_stays_what_it_is(said, shown):
    assert pretty(ToolAnswer(said)) == shown
    assert ToolAnswer(said) == said


def test_tools_of_one_name_on_two_servers_are_called_by_their_server_too():
    registry = McpRegistry(None, lambda: None)
    asked = []

    def server(name, *tools):
        async def call(tool, _arguments):
            asked.append(f"{name}.{tool}")
            return name, False

        return ContextTools(
            name, "https://x.example/mcp", [ContextTool(t, "", SCHEMA, partial(call, t)) for t in tools]
        )

    registry.servers = {"docs": server("docs", "find", "read"), "wiki": server("wiki", "find")}

    def find(query: str) -> str:
        return query

    tools = registry.resolve(["docs", "wiki", "docs.find", find])
    assert [schema.function.name for schema in tools.schemas] == ["docs_find", "read", "wiki_find", "find"]
    assert tools.notes == ("tools of one name are called docs.find as docs_find, wiki.find as wiki_find",)
    call = FunctionToolCall.model_validate(
        {"id": "1", "type": "function", "function": {"name": "wiki_find", "arguments": "{}"}}
    )
    (message,), errors = asyncio.run(tools.answer([call]))
    assert (message.content, errors, asked) == ("wiki", [], ["wiki.find"])
    alone = registry.resolve(["wiki", registry.servers["docs"]["read"]])
    assert [schema.function.name for schema in alone.schemas] == ["find", "read"]
    assert alone.notes == ()
