"""The practice policies: small language models that ship with rolloutlab, to try the loop without a download.

`tools/practice_policy` trains them from a seed and evaluates them; the results are in `weights/` and `reasoning/`.
Importing this package imports neither torch nor transformers.
"""

from pathlib import Path

FOLDER = Path(__file__).parent / "weights"
"""Weights, tokenizer and chat template, as `transformers` loads them."""
FOLDERS = {"practice": FOLDER, "practice-reasoning": Path(__file__).parent / "reasoning"}
"""By the name of the policy; the second writes its reasoning before an answer."""
