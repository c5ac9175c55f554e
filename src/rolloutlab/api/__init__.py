"""Calls become HTTP: inference, training, and finding or starting the embedded service."""
