"""The practice policy: a small language model made by this project, to learn the loop on without a download.

`make` trains it from a seed on the chats of `exchanges`, `evaluate` measures what it knows, and the result is kept
in `weights/`. Importing this package costs nothing: no torch, no transformers.
"""

from pathlib import Path

FOLDER = Path(__file__).parent / "weights"
"""The folder of the committed weights, tokenizer and chat template; `transformers` loads it as it is."""
