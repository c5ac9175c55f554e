"""Files and folders that outlive a crash: flushed before they count, swept when nobody listed them."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def own(folder: Path) -> None:
    """Make a folder that only its owner can open, and so every folder above it that is not there."""
    for path in [*reversed(folder.parents), folder]:
        path.mkdir(mode=0o700, exist_ok=True)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; what cannot be removed now is left to the next sweep."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sweep(folder: Path, wanted: Iterable[str]) -> None:
    """Remove whatever a folder holds under other names than the wanted ones, drafts above all."""
    for path in set(folder.glob("*")) - {folder / name for name in wanted}:
        remove(path)
