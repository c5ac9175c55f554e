"""A program that writes a checkpoint's merged model: `python -m rolloutlab.policy.merged_folder`.

The notebook runs it in a process of its own, because the notebook side never loads torch. Standard input has one line
of JSON, the arguments of `write_merged`; its end stops the program, as when the notebook is killed. Standard output has
a line of JSON for each note, and at the end one with an error, or an empty object.
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
        dtype: In which its service has the base; the merged weights are written in it.
        note: Called with what is being done.

    Raises:
        PolicyError: the base is not on this machine, or another one of that name is; or it cannot be merged.
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
    out, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no report

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
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
