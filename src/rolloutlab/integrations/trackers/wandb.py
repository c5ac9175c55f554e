"""Weights & Biases: runs that `wandb` sends to its server if you are logged in, or keeps in the lab folder.

A number may come later than others of its step, and W&B takes no earlier step than its last one. So `step` is a number
of each row and the axis of the others, and the rows of W&B itself are only counted.
"""

import json
import netrc
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rolloutlab.api.http.ip_scope import on_this_machine
from rolloutlab.errors import InputError, LabError, UnreachableError, described
from rolloutlab.fsutil import Lock, own, refused, remove, write_private
from rolloutlab.integrations.trackers.written import (
    ByStep,
    find_added,
    identity,
    import_package,
    numbers_of,
    times_of,
)
from rolloutlab.runs.table import RunTable

_LONGEST_WAIT = 600.0  # seconds for another kernel that sends the same run
_OFFLINE = "WANDB_MODE=offline keeps the run in the lab folder"
_HINT = 'report_to=["wandb:ENTITY/PROJECT"]'


def open_tracker(place: str, home: Path) -> "WandbRuns":
    """Open a project of W&B: `PROJECT` or `ENTITY/PROJECT`; without one, the project of each run."""
    import_package("wandb")
    entity, _, project = place.rpartition("/")
    return WandbRuns(entity or None, project, home)


class WandbRuns:
    """Runs of a project of W&B, from this lab."""

    def __init__(self, entity: str | None, project: str, home: Path) -> None:
        self._entity, self._project, self._home = entity, project, home

    def log(self, run: RunTable) -> str:
        """Send what is new of a run if there is a key or a login; else write the whole run to a folder of the lab.

        A number that was sent cannot be changed. If one has changed, all are sent as another run of the same name.
        """
        folder = self._home / "wandb"
        project = re.sub(r"[/\\#?%:\x00-\x1f]", "-", self._project or run.project)[:128]
        name = identity(run, self._home, "wandb", self._entity or "", project)
        lock = Lock(folder / f"{name}.lock", thread_local=False)
        try:
            own(folder)
            if not lock.try_acquire(_LONGEST_WAIT):
                raise LabError(f"another kernel still sends {run.name} to W&B", hint="run the cell again")
            try:
                if server := _server():
                    return self._send(run, project, name, folder, server)
                return self._keep(run, project, name, folder)
            finally:
                lock.release()
        except OSError as error:
            raise refused(f"{folder} cannot be written", error, "set ROLLOUTLAB_HOME to another folder") from error

    def _keep(self, run: RunTable, project: str, name: str, folder: Path) -> str:
        """Write a folder with the whole run, then remove the older one, unless it has been sent by `wandb sync`."""
        begun = self._begin(run, project, name, "offline")
        kept = Path(begun.dir).parent
        _fill(begun, run, numbers_of(run))
        for older in folder.glob(f"offline-run-*-{name}*"):
            if older != kept and not list(older.glob("*.synced")):
                remove(older)
        return f"W&B: {kept} (offline; wandb sync {shlex.quote(str(kept))} sends it)"

    def _send(self, run: RunTable, project: str, name: str, folder: Path, server: str) -> str:
        """Send what `NAME.json` does not list as sent.

        The file says `sending` until W&B has taken the rows. If the kernel was killed meanwhile, some may have arrived,
        so that all are sent as another run instead of some of them twice.
        """
        record = folder / f"{name}.json"
        unsent: dict[str, Any] = {"number": 0, "sending": False, "rows": {}}
        sent = json.loads(record.read_text()) if record.exists() else unsent
        before = {int(step): numbers for step, numbers in sent["rows"].items()}
        after, number = numbers_of(run), sent["number"]
        more, note = find_added(before, after), ""
        if more is None or sent["sending"]:
            why = "numbers have changed" if more is None else "an earlier transfer broke off"
            number, more, note = number + 1, after, f"; a new run, since {why}: the older one stays there"
        entry = {"number": number, "rows": {str(step): numbers for step, numbers in after.items()}}
        begun = self._begin(run, project, f"{name}-{number}", "online")
        write_private(record, json.dumps({**entry, "sending": True}).encode())
        _fill(begun, run, more)
        write_private(record, json.dumps({**entry, "sending": False}).encode())
        return f"W&B: {run.name} of {project} at {server}{note}"

    def _begin(self, run: RunTable, project: str, run_id: str, mode: str) -> Any:
        """Begin a run of W&B, or go on with it. A run that the notebook itself has begun goes on."""
        import wandb

        try:
            return wandb.init(
                entity=self._entity, project=project, name=run.name, id=run_id, dir=str(self._home), mode=mode,
                config=json.loads(json.dumps(dict(run.config), default=str)),
                tags=[tag[:64] for tag in run.tags if tag], reinit="create_new",
                resume="allow" if mode == "online" else None, settings=wandb.Settings(**_SETTINGS),
            )  # fmt: skip
        except OSError:
            raise
        except Exception as error:
            raise _not_taken(run, error) from error


def _fill(begun: Any, run: RunTable, numbers: ByStep) -> None:
    """Log rows to a run of W&B, and end it."""
    times = times_of(run)
    try:
        try:
            begun.define_metric("step")
            begun.define_metric("*", step_metric="step")
            for step, values in numbers.items():
                begun.log({"step": step, **values, "_timestamp": times[step].timestamp()})
        finally:
            begun.finish()
    except OSError:
        raise
    except Exception as error:
        raise _not_taken(run, error) from error


def _not_taken(run: RunTable, error: Exception) -> UnreachableError:
    return UnreachableError(f"W&B does not take {run.name}: {described(error)}", hint=_OFFLINE)


_SETTINGS: Mapping[str, Any] = {
    "silent": True, "console": "off", "save_code": False, "disable_git": True, "disable_code": True,
    "x_disable_meta": True, "x_disable_stats": True, "x_disable_machine_info": True,
    "x_save_requirements": False, "init_timeout": 60,
}  # fmt: skip
"""Nothing is sent but the numbers and the options: no code, no packages, no output of cells, no name of the machine."""


def _server() -> str | None:
    """Find the server to send to; None if there is no key, or if the user has chosen to stay offline.

    Raises InputError if W&B is switched off, or the key would go over a connection that others can read.
    """
    import wandb

    settings = wandb.setup().settings
    if settings.mode == "disabled":
        raise InputError("WANDB_MODE=disabled: W&B would write nothing", hint="WANDB_MODE=offline, or online")
    url = str(settings.base_url)
    if settings.mode in {"offline", "dryrun"} or not (settings.api_key or _has_login(url)):
        return None
    if urlsplit(url).scheme != "https" and not on_this_machine(url):
        raise InputError(f"the key of W&B would go to {url} without encryption", hint="WANDB_BASE_URL=https://HOST")
    return url


def _has_login(url: str) -> bool:
    """Whether `wandb login` has stored a key for a server, or a file has a token for it."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    files = [os.environ["NETRC"]] if os.environ.get("NETRC") else ["~/.netrc", "~/_netrc"]
    for file in files:
        try:
            if netrc.netrc(Path(file).expanduser()).authenticators(urlsplit(url).netloc):
                return True
        except (OSError, RuntimeError, netrc.NetrcParseError):
            continue
    return False
