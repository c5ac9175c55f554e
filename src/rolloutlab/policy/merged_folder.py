"""A program that writes a checkpoint's merged model: `python -m rolloutlab.policy.merged_folder`.

The notebook runs it in a process of its own, because the notebook side never loads torch. Standard input has one line
of JSON, the arguments of `write_merged`. When it closes, as it does when the notebook is killed, the program ends.
Standard output has a line of JSON for each note, and at the end one with an error, or an empty object.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from rolloutlab.errors import PolicyError, RolloutlabError
from rolloutlab.fsutil import refused
from rolloutlab.policy.adapter_folder import merge_adapter, save_model
from rolloutlab.policy.model import fingerprint, load_policy
from rolloutlab.settings import ModelSettings


def write_merged(
    adapter: str, folder: str, base: str, expected: str, dtype: str, note: Callable[[str], None] = lambda _: None
) -> None:
    """Write a base with an adapter merged into its weights, as `transformers` loads it, with tokenizer and template.

    Args:
        adapter: The adapter folder.
        folder: The folder to write.
        base: A packaged policy, a folder, a GGUF file or a hub name.
        expected: The fingerprint of the base that the adapter was trained on.
        dtype: The dtype in which the service has the base. The merged weights are written in it.
        note: Called with what is being done.

    Raises:
        PolicyError: this machine has no such base, or another one of that name; or the adapter cannot be merged.
        LabError: the folder cannot be written.
    """
    note("loading the base")
    policy = load_policy(base, ModelSettings(device="cpu", dtype=dtype), note)
    if fingerprint(policy) != expected:
        message = f"{base} on this machine is another base than the checkpoint was trained on"
        raise PolicyError(message, hint="the same command without --merged, which writes the adapter")
    note("merging the adapter")
    merged = merge_adapter(policy.base, adapter, policy.name, Path(adapter).name)
    note("writing the weights")
    try:
        save_model(merged, policy.tokenizer, folder)
    except OSError as error:
        raise refused(f"{folder} cannot be written", error, "--to another folder") from error


def main() -> None:
    """Read the arguments, write the folder and report."""
    out, sys.stdout = sys.stdout, sys.stderr  # what libraries print must not be read as a report

    def report(**message: str | None) -> None:
        print(json.dumps(message), file=out, flush=True)

    arguments = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_notebook, daemon=True).start()
    try:
        write_merged(**arguments, note=lambda text: report(note=text))
        report()
    except RolloutlabError as error:
        report(error=error.message, hint=error.hint)


def _end_with_notebook() -> None:
    """End the process once the notebook has closed standard input."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
