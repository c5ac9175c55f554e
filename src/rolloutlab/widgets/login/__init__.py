"""Sign-in prompts: notebook, console, command."""
