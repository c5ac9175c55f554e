"""Default model of a policy: the name under which a session samples and trains it until another one is selected"""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress

from rolloutlab.settings import Settings, short_name

PRACTICE = "lab/practice"
"""The default model of the policy `practice`, and at services elsewhere."""


def default_model(settings: Settings) -> str:
    """Return `lab/NAME` for a policy, folder or file called NAME; `lab/practice` for services elsewhere.

    A model belongs to the policy that it was registered on, so each policy of a lab needs a default model of its own.
    In a lab of an earlier version, `lab/practice` may belong to another policy. With that policy, it stays the default.
    """
    if settings.service is not None:
        return PRACTICE
    base = short_name(settings.policy)
    own = re.sub(r"[^\w.-]+", "-", base.rpartition("/")[2]).strip("-.") or "policy"
    models = {name: policy for project, name, policy in _read_models(settings) if project == "lab"}
    return PRACTICE if own not in models and models.get("practice") == base else f"lab/{own}"


def registered_bases(settings: Settings) -> dict[str, str]:
    """Return the policy of each model of the embedded service, by PROJECT/NAME. The service need not run.

    Empty if the database cannot be read: the service will report what is wrong with it.
    """
    return {f"{project}/{name}": policy for project, name, policy in _read_models(settings)}


def _read_models(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Yield project, name and policy of each model, from the service's database, which is opened for reading only."""
    path = settings.service_folder / "service.db"
    with suppress(sqlite3.Error, OSError):
        if path.exists():
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as database:
                yield from database.execute("SELECT project, name, base_model FROM models").fetchall()
