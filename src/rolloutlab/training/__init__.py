"""Training jobs: check, submit and follow them; the sample-score-train loop."""
