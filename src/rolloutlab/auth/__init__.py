"""Signing in with OAuth 2.1, as docs/authorization.md says clause by clause."""
