"""Parts that all views are made of, as HTML without scripts: style, hints, figures, bars, tables and charts."""
