"""MCP client: tools of context servers for a policy; needs `rolloutlab[context]`."""
