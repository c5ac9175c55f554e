"""Tests; a regular package, since old IPython has one called `tests` on the path of a kernel."""
