"""Engines: what samples, scores and trains below the service, on this machine or on others."""
