"""The embedded service: chat, training, MCP and OAuth over HTTP. It imports nothing of the notebook side."""
