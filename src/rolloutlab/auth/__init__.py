"""OAuth 2.1 client, sans-IO; docs/authorization.md lists its clauses."""
