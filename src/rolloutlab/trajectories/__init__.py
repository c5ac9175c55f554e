"""What a notebook holds and a browser talks to: rewards to edit, groups to read."""
