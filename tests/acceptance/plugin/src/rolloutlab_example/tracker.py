"""`report_to=["pages:FOLDER"]`: a page of JSON for each run."""

import json
import os
from pathlib import Path
from urllib.parse import quote

from rolloutlab.errors import LabError


class Pages:
    """Writes a run as a whole each time, so that nothing is there twice and changed numbers are replaced."""

    def __init__(self, folder):
        self.folder = folder

    def log(self, run):
        page = self.folder / f"{quote(run.name, safe=' ')}.json"
        draft = page.with_suffix(f".{os.getpid()}")  # of this process alone; a reader never sees half a page
        content = {"project": run.project, "config": dict(run.config), "steps": run.by_step()}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(content, default=str))
            draft.replace(page)
        except OSError as error:
            raise LabError(f"{page} cannot be written: {error}", hint='report_to=["pages:FOLDER"]') from error
        return f"a page of JSON: {page}"


def open_tracker(place, home):
    return Pages(Path(place) if place else home / "pages")
