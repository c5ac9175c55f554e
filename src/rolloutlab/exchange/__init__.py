"""Collections to files and back, one module per format."""

FORMATS = ("jsonl", "parquet", "openai", "art")
