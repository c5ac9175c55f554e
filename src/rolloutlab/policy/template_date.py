"""The date that chat templates print as the current date: the same one on each day.

A prompt is then the same when its completion is sampled, continued and trained.
"""

from datetime import date
from functools import lru_cache

DATE = date(2024, 7, 26)
"""The date unless the settings name another: what templates of Llama 3 print if they cannot know the date."""
_DIRECTIVES = "aAbBcdGHIjmMpSuUVwWxXyYZ%"


def prints_date(template: str) -> bool:
    """Whether a template asks for the current date."""
    return "strftime_now" in template


@lru_cache(maxsize=8)
def with_date(template: str, day: date) -> str:
    """Give a template a `strftime_now` that always formats `day`. A template that does not call it is unchanged.

    It is a macro, because transformers passes no functions to templates, and replaces the directives of `strftime`.
    """
    if not prints_date(template):
        return template
    values = {f"%{each}": day.strftime(f"%{each}") for each in _DIRECTIVES}
    values |= {f"%-{name[1]}": value.lstrip("0") or "0" for name, value in values.items() if value.isdigit()}
    replaced = "".join(f"|replace('{name}', '{value}')" for name, value in values.items())
    return f"{{% macro strftime_now(format) %}}{{{{ format{replaced} }}}}{{% endmacro +%}}{template}"
