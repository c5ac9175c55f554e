"""What a newcomer types."""

import re
from pathlib import Path

import pytest


@pytest.fixture
def readme_cells() -> list[str]:
    """The code blocks of "The first cells", sampled with a seed so that they do the same every time."""
    readme = (Path(__file__).parent.parent.parent / "README.md").read_text()
    part = readme.partition("## The first cells")[2].partition("| magic | does |")[0]
    found = re.findall(r"```(?:python)?\n(.*?)```", part, re.DOTALL)
    return [cell.replace("-n 8", "-n 8 --seed 1").replace("n=8", "n=8, seed=1") for cell in found]
