"""From scored collections to a checkpoint: what would train, what is submitted, what becomes of it."""
