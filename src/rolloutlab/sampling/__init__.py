"""From a prompt and its rows to trajectories: what is asked, turn by turn, and what comes of it, kept as it arrives."""
