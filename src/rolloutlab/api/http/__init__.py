"""HTTP transport: client, retries, error mapping, SSRF guard."""
