"""MCP server over the lab, protected by the OAuth server."""
