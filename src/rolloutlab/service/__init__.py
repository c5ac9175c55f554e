"""HTTP to policy: the embedded service. It imports nothing of the notebook side."""
