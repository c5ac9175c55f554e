"""A package, so that its server and browser end with its last test: playwright leaves an event loop in this thread."""
