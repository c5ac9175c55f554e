"""Executing a search: three calls of a backend, and arithmetic on what they give."""
