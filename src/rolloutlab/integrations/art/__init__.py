"""openpipe-art: its reward functions, and files of its trajectory groups."""
