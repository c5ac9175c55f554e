"""The practice policy: a small language model that ships with rolloutlab, to try the loop without a download.

`tools/practice_policy` trains it from a seed and evaluates it; the result is in `weights/`. Importing this package
imports neither torch nor transformers.
"""

from pathlib import Path

FOLDER = Path(__file__).parent / "weights"
"""Weights, tokenizer and chat template, as `transformers` loads them."""
