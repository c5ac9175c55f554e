"""The command line of rolloutlab."""
