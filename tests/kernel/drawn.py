"""Notes every secret that rolloutlab draws, where it is drawn: on PYTHONPATH as `sitecustomize`, for all processes.

A line of the file that ROLLOUTLAB_TEST_DRAWN names is one secret: the module and function that drew it, and the secret.
"""

import os
import secrets
import sys

_draw = secrets.token_urlsafe


def token_urlsafe(nbytes: int | None = None) -> str:
    """Draw a secret, and note it for the test."""
    drawn = _draw(nbytes)
    frame = sys._getframe(1)
    who = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"
    if who.startswith("rolloutlab."):
        with open(os.environ["ROLLOUTLAB_TEST_DRAWN"], "a", encoding="utf-8") as noted:  # noqa: PTH123
            noted.write(f"{who} {drawn}\n")
    return drawn


secrets.token_urlsafe = token_urlsafe
