"""Plain values become something to look at: text that is stable, and HTML that reads well without styles or scripts."""
