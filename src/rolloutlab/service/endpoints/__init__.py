"""HTTP endpoints: chat completions, models, training jobs."""
