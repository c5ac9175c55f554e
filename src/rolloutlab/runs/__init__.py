"""Runs: what happened to a model over all steps, beside other runs."""
