"""Integrations: the only modules that know third parties by name; the core finds them by entry points (plugins.py)."""
