"""Files of a tokenizer, as `transformers` loads them, with its chat template."""

from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import PreTrainedTokenizerBase


def tokenizer_files(tokenizer: PreTrainedTokenizerBase) -> dict[str, bytes]:
    """Return the content of each file of a tokenizer by its name, such as `tokenizer.json`."""
    with TemporaryDirectory(prefix="rolloutlab-") as folder:
        tokenizer.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}
