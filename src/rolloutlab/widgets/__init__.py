"""Rendering of plain values as stable text, as HTML that needs no style or script, and as widgets."""
