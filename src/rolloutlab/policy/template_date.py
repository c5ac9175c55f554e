"""The date that chat templates print as the current one: the same on each day.

A prompt is then the same when its completion is sampled, continued and trained. It is the date that templates of Llama
3 have where they cannot know another.
"""

from datetime import datetime
from functools import lru_cache

DATE = datetime(2024, 7, 26)
_DIRECTIVES = "aAbBcdGHIjmMpSuUVwWxXyYZ%"


@lru_cache(maxsize=8)
def with_fixed_date(template: str) -> str:
    """The template with its own `strftime_now`; unchanged where it has none.

    A macro, since transformers passes no functions to templates; its replacements are the directives of `strftime`.
    """
    if "strftime_now" not in template:
        return template
    values = {f"%{each}": DATE.strftime(f"%{each}") for each in _DIRECTIVES}
    values |= {f"%-{name[1]}": value.lstrip("0") or "0" for name, value in values.items() if value.isdigit()}
    replaced = "".join(f"|replace('{name}', '{value}')" for name, value in values.items())
    return f"{{% macro strftime_now(format) %}}{{{{ format{replaced} }}}}{{% endmacro +%}}{template}"
