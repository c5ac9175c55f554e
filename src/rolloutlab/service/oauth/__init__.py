"""The authorization server of a lab: OAuth 2.1 with the lab's owner as the one who consents. docs/authorization.md."""
