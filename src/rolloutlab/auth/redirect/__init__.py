"""Gets the answer of a sign-in back from a browser, wherever that is."""
