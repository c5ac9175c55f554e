"""Merging of a checkpoint into its base, in a process of its own, which may load torch."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from rolloutlab.errors import PolicyError

_PROGRAM = "rolloutlab.policy.merged_folder"
_INSTALL = "pip install 'rolloutlab[local]'"


def write_merged(
    adapter: Path, folder: Path, base: str, fingerprint: str, dtype: str, note: Callable[[str], None]
) -> None:
    """Write the merged model of an adapter folder into a folder, as `policy.merged_folder.write_merged` does.

    Args:
        adapter: The adapter folder.
        folder: The folder to write.
        base: A packaged policy, a folder, a GGUF file or a hub name.
        fingerprint: The fingerprint of the base that the adapter was trained on.
        dtype: The dtype of the merged weights.
        note: Called with what is being done.

    Raises:
        PolicyError: it cannot be merged; the message has the reason.
    """
    arguments = {
        "adapter": str(adapter),
        "folder": str(folder),
        "base": base,
        "expected": fingerprint,
        "dtype": dtype,
    }
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
        try:
            _write_line(process.stdin, arguments)
            last = _follow(process.stdout, note)
            if last is None:
                raise _make_error(process.wait(), errors)
            if "error" in last:
                raise PolicyError(str(last["error"]), hint=str(last["hint"] or "") or None)
        finally:
            process.kill()  # also after an interrupt; a process that has ended stays ended
            process.communicate()


def _write_line(pipe: IO[bytes] | None, arguments: dict[str, str]) -> None:
    """Send the arguments. The pipe stays open, because closing it would stop the program."""
    assert pipe is not None
    try:
        pipe.write(json.dumps(arguments).encode() + b"\n")
        pipe.flush()
    except BrokenPipeError:  # the program has ended: its standard error says why
        return


def _follow(pipe: IO[bytes] | None, note: Callable[[str], None]) -> dict[str, object] | None:
    """Pass on the notes until the last report, and return that; None if the program ends without one."""
    assert pipe is not None
    for line in pipe:
        report: dict[str, object] = json.loads(line)
        if "note" not in report:
            return report
        note(str(report["note"]))
    return None


def _make_error(status: int, errors: IO[bytes]) -> PolicyError:
    """Make the error of a program that has ended without a report, from its standard error."""
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines() or [f"its exit status is {status}"]
    missing = "No module named" in lines[-1]
    message = f"the checkpoint could not be merged: {lines[-1]}"
    return PolicyError(message, hint=_INSTALL if missing else "more memory, or the same command without --merged")
