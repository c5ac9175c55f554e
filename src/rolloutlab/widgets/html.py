"""What words look like in a table of HTML: on the left, also where a page strips styles or has its own."""


def words(html: str) -> str:
    """A cell of words; GitHub strips styles, and notebooks have numbers in mind and put all cells to the right."""
    return f'<td style="text-align:left;white-space:pre-wrap"><div align="left">{html}</div></td>'


def heading(html: str) -> str:
    """The heading of a column of words."""
    return f'<th style="text-align:left"><div align="left">{html}</div></th>'
