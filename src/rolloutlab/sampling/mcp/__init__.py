"""Context servers: their tools, for a policy to call; needs `rolloutlab[context]`."""
