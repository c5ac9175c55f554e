"""What every view is made of, as HTML that needs no script: its style, hints, figures, bars, tables and charts."""
