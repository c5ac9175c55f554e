"""The rules of the tree that import-linter cannot express."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from graphlib import TopologicalSorter
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "rolloutlab"
MODULES = {path.relative_to(PACKAGE): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
MODULE_NAMES = {".".join(("rolloutlab", *path.with_suffix("").parts)).removesuffix(".__init__") for path in MODULES}
SERVICE = {"service", "engines", "policy", "cli"}
ENGINES = {"ray", "tinker", "vllm.py"}
"""The integrations that compute for the service."""
WIRE = Path("api") / "wire"
"""Wire models keep the specification's names, whatever a room calls its own classes."""
ESCAPERS = {"html", "markupsafe", "xml.sax.saxutils", "cgi", "jinja2", "tornado.escape"}
DEVELOPING = {"dev", "test"}


def is_of_the_service(path: Path) -> bool:
    return path.parts[0] in SERVICE or (path.parts[0] == "integrations" and path.parts[1] in ENGINES)


def classes(*, of_the_service: bool) -> dict[str, list[str]]:
    """Class names with the modules that define them, without wire models."""
    places = defaultdict(list)
    for path, tree in MODULES.items():
        if is_of_the_service(path) is of_the_service and WIRE not in path.parents:
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(str(path))
    return {name: where for name, where in places.items() if len(where) > 1}


def test_a_class_name_is_unique_within_the_notebook_side():
    assert classes(of_the_service=False) == {}


def test_a_class_name_is_unique_within_the_service_side():
    assert classes(of_the_service=True) == {}


def test_magics_use_only_public_names_of_the_session():
    private = [
        f"{path}:{node.lineno} {node.attr}"
        for path, tree in MODULES.items()
        if path.parts[0] == "magics"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and (
            getattr(node.value, "attr", "") in {"session", "lab"} or getattr(node.value, "id", "") in {"session", "lab"}
        )
    ]
    assert private == []


def imported(path: Path) -> set[str]:
    """The modules that a module imports when it runs, early or late; `from room import module` is that module."""
    tree = MODULES[path]
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    nodes = [node for node in ast.walk(tree) if id(node) not in for_types]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            modules = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= modules if modules & MODULE_NAMES else {str(node.module)}
    return names


@pytest.mark.parametrize("name", ["page", "response", "ipc", "jupyter_server"])
def test_what_runs_inside_the_jupyter_server_imports_the_standard_library_and_tornado_alone(name):
    path = Path("auth") / "redirect" / f"{name}.py"
    others = {each.partition(".")[0] for each in imported(path)} - sys.stdlib_module_names
    assert others <= {"tornado", "jupyter_server", "rolloutlab"}
    own = {each for each in imported(path) if each.startswith("rolloutlab")}
    assert own <= {f"rolloutlab.auth.redirect.{each}" for each in ("page", "response", "ipc")}


def test_no_imports_go_in_a_circle_not_even_late_ones():
    names = {path: ".".join(("rolloutlab", *path.with_suffix("").parts)).removesuffix(".__init__") for path in MODULES}
    graph = {name: imported(path) & MODULE_NAMES - {name} for path, name in names.items()}
    TopologicalSorter(graph).prepare()  # which raises a CycleError


OPTIONAL = {"art", "openai", "psutil", "sentence-transformers"}
"""Imported where a front end or a person has installed them, and done without elsewhere."""
OF_THE_JUPYTER_SERVER = {"jupyter-server", "tornado"}
"""Imported by the module that runs inside it alone."""


def test_every_distribution_that_is_imported_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [
        each for name, extra in project["optional-dependencies"].items() if name not in DEVELOPING for each in extra
    ]
    declared = {canonical(re.split(r"[<>=!~\[ ]", each)[0]) for each in [*project["dependencies"], *extras]}
    owners = metadata.packages_distributions()
    tops = {name.partition(".")[0] for path in MODULES for name in imported(path)} - sys.stdlib_module_names
    distributions = {canonical(each) for top in tops - {"rolloutlab"} for each in owners.get(top, [top])}
    assert {"httpx", "pandas", "torch"} <= distributions
    assert distributions - declared - OPTIONAL - OF_THE_JUPYTER_SERVER == set()


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_only_one_module_of_the_notebook_side_turns_text_into_html():
    escaping = {str(path) for path in MODULES if not is_of_the_service(path) and imported(path) & ESCAPERS}
    assert escaping == {"widgets/html.py"}
    assert {name for name in imported(Path("widgets") / "html.py") if name.startswith("rolloutlab")} == {
        "rolloutlab.sanitize"
    }


def test_views_in_the_browser_make_nodes_not_markup():
    scripts = [path for kind in ("*.js", "*.ts") for path in (PACKAGE / "widgets" / "js").rglob(kind)]
    assert scripts
    markup = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser")
    assert [f"{path.name}: {name}" for path in scripts for name in markup if name in path.read_text()] == []


def test_a_room_of_widgets_has_one_alias():
    aliases = {
        f"{path}: {alias.name} as {alias.asname}"
        for path, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("rolloutlab.widgets")
        for alias in node.names
        if alias.asname not in {None, "render"}
    }
    assert aliases == set()


def test_the_architecture_page_lists_every_module_as_it_describes_itself():
    done = subprocess.run(
        [sys.executable, "-c", "import architecture; print(architecture.page(), end='')"],
        cwd=ROOT / "docs", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (ROOT / "docs" / "architecture.md").read_text() == done.stdout, "run: python docs/architecture.py"
