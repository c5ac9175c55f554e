"""MCP client: tools of MCP servers ("context servers") for a policy; needs `rolloutlab[context]`."""
