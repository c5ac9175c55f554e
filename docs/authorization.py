"""Write the tests into the tables of authorization.md: `python docs/authorization.py`.

A test says by `@pytest.mark.clause("A3")` which clauses it shows. What a cell has besides its tests is written by hand.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "authorization.md"
ROW = re.compile(r"^\| ([A-Z]\d+) \| (.+) \| (.+) \| (.*) \|$", re.MULTILINE)
TESTS = re.compile(r"(?:: )?(?:`[\w/]+\.py::\w+`(?:, )?)+$")


def marked() -> dict[str, list[str]]:
    """The tests of each clause, by file and in its order; found without importing them."""
    tests: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "mark.clause" in (source := path.read_text()):
            for name, clauses in _clauses(ast.parse(source)):
                for clause in clauses:
                    tests[clause].append(f"`{path.relative_to(ROOT / 'tests').as_posix()}::{name}`")
    return tests


def _clauses(module: ast.Module) -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.clause":
                    yield node.name, [ast.literal_eval(argument) for argument in mark.args]


def page() -> str:
    """The page as it should be."""
    tests = marked()

    def row(match: re.Match[str]) -> str:
        clause, text, roles, cell = match.groups()
        parts = [TESTS.sub("", cell), ", ".join(tests[clause])]
        return f"| {clause} | {text} | {roles} | {': '.join(filter(None, parts))} |"

    return ROW.sub(row, PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(page())
