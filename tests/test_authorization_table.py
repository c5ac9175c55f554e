"""The tables of docs/authorization.md are whole, and have the tests that carry each clause."""

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGES = [TESTS.parent / "docs" / name for name in ("authorization.md", "security.md")]
SECTION = re.compile(r"^## ([A-Z])\. .+ \((\d+)\)$", re.MULTILINE)
ROW = re.compile(r"^\| ([A-Z])(\d+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
COUNTS = dict(zip("ABCDEFGHIJKLMNOPQ", [14, 4, 4, 9, 5, 4, 6, 7, 10, 7, 3, 3, 5, 22, 9, 2, 2], strict=True))
"""Clauses of the specification by section, counted in it and not in the page."""


@cache
def names_in(path: str) -> set[str]:
    """The names of the test functions in a file."""
    tree = ast.parse((TESTS / path).read_text())
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def rows() -> list[tuple[str, int, str, str, str]]:
    found = ROW.findall(PAGES[0].read_text())
    return [(letter, int(number), clause, role, shown) for letter, number, clause, role, shown in found]


def test_no_clause_is_missing_or_there_twice():
    keys = Counter(f"{letter}{number}" for letter, number, *_ in rows())
    assert keys == Counter(f"{letter}{number + 1}" for letter, count in COUNTS.items() for number in range(count))


def test_each_heading_counts_its_clauses():
    assert {letter: int(count) for letter, count in SECTION.findall(PAGES[0].read_text())} == COUNTS


def test_each_clause_is_shown_by_a_test_or_says_why_it_does_not_apply():
    bare = [
        f"{letter}{number}"
        for letter, number, _, _, shown in rows()
        if not NAMED.search(shown) and not re.match(r"does not apply: .{10,}", shown)
    ]
    assert bare == []


def test_each_clause_says_whom_it_concerns():
    roles = {role for *_, cell, _ in rows() for role in cell.split(", ")}
    assert roles == {"client", "AS", "RS", "all"}


def test_the_tables_have_the_tests_that_carry_each_clause_and_no_other_clause_is_carried():
    code = "import authorization; print(*authorization.marked()); print(authorization.page(), end='')"
    done = subprocess.run([sys.executable, "-c", code], cwd=PAGES[0].parent, capture_output=True, text=True, check=True)
    carried, _, page = done.stdout.partition("\n")
    assert set(carried.split()) <= {f"{letter}{number}" for letter, number, *_ in rows()}
    assert PAGES[0].read_text() == page, "run: python docs/authorization.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_test_that_a_page_names_exists(page):
    named = NAMED.findall(page.read_text())
    assert named
    assert [f"{path}::{name}" for path, name in named if name not in names_in(path)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_nothing_that_looks_like_a_test_is_named_in_another_way(page):
    text = page.read_text()
    assert len(re.findall(r"::", text)) == len(NAMED.findall(text))
