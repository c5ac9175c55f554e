"""The practice policies: small language models that ship with rolloutlab, to try the loop without a download.

`tools/practice_policy` makes and evaluates them; `weights/`, `reasoning/` and `games/` are the results.
Importing this package imports neither torch nor transformers.
"""

from pathlib import Path

from rolloutlab.settings import PACKAGED

FOLDERS = {name: Path(__file__).parent / folder for name, folder in PACKAGED.items()}
"""Weights, tokenizer and chat template, as `transformers` loads them, by the name of the policy."""
FOLDER = FOLDERS["practice"]
"""The default policy. `practice-reasoning` writes its reasoning before an answer, and `practice-games` plays."""


def source_of(policy: str) -> str:
    """Return what `transformers` loads: the absolute path of a packaged policy or of a folder, else a hub name."""
    path = Path(FOLDERS.get(policy, policy)).expanduser()
    return str(path.resolve()) if path.is_dir() else policy
