"""A disk that is full when a lab or a service is opened: it is called that, and the hint is to free some of it."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

ON_A_SMALL_DISK = """
set -e
mkdir -p disk
mount -t tmpfs -o size=1m none disk
cp -r lab disk/lab
{fill} 2>/dev/null || true
exec {python} -c "$CODE"
"""
OPEN = """
from pathlib import Path
from rolloutlab.errors import LabError
from rolloutlab.store.lab import Lab
from rolloutlab.service.database import open_service_database
from rolloutlab.service.lifecycle import Folder
for opened in (lambda: Lab(Path("disk/lab/lab.db")), lambda: open_service_database(Path("disk/lab/service"))):
    try:
        opened()
    except LabError as error:
        print(error.message, "->", error.hint)
    else:
        print("it was opened")
"""


@pytest.fixture
def opened(tmp_path):
    """What opening both databases of a lab says on a disk of a megabyte that the command has filled."""
    make = "from pathlib import Path; " + OPEN.partition("for opened")[0].replace("\n", "; ").strip("; ")
    make += "; Lab(Path('lab/lab.db')).close(); open_service_database(Path('lab/service')).close()"
    subprocess.run([sys.executable, "-c", make], cwd=tmp_path, check=True, timeout=240)

    def run(fill):
        script = ON_A_SMALL_DISK.format(fill=fill, python=sys.executable)
        command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script]
        ended = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "CODE": OPEN}, capture_output=True, text=True, timeout=120
        )
        if "unshare" in ended.stderr or "mount" in ended.stderr:
            pytest.skip(f"no disk can be mounted here: {ended.stderr.strip()}")
        assert ended.stderr == ""
        return ended.stdout.splitlines()

    return run


def test_a_full_disk_is_called_that_when_a_lab_and_a_service_are_opened(opened):
    said = opened("cat /dev/zero > disk/filled")
    assert [line.rpartition("/")[2] for line in said] == [
        "lab.db cannot be opened: the disk is full -> free some disk space",
        "service.db cannot be opened: the disk is full -> free some disk space",
    ]


@pytest.mark.parametrize("made", ["rm -r disk/lab", "rm disk/lab/lab.db disk/lab/service/service.db"])
def test_a_full_disk_is_called_that_at_the_first_use_of_a_lab(opened, made):
    said = opened(f"{made}; cat /dev/zero > disk/filled")
    assert len(said) == 2
    for line in said:
        assert line.endswith(" -> free some disk space")


def test_a_disk_with_some_space_is_enough(opened):
    assert opened("true") == ["it was opened", "it was opened"]
