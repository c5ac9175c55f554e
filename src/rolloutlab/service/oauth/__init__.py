"""OAuth 2.1 authorization server of a lab, whose owner gives consent; see docs/authorization.md."""
