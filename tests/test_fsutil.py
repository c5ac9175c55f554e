"""Files and folders of a lab."""

import os

import pytest

from rolloutlab.fsutil import own


@pytest.mark.skipif(os.name != "posix", reason="rights are another thing there")
def test_every_folder_that_is_made_is_its_owners_alone_and_one_that_was_there_stays_as_it_was(tmp_path):
    there = tmp_path / "there"
    there.mkdir(mode=0o755)
    own(there / "lab" / "service")
    own(there / "lab" / "service")
    rights = [path.stat().st_mode & 0o777 for path in (there, there / "lab", there / "lab" / "service")]
    assert rights == [0o755, 0o700, 0o700]
