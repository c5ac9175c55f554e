"""HTTP endpoints: chat completions, models, logprobs, training jobs, usage."""
