"""The lab that reward functions are tested on."""

from tests.scoring.conftest import collect, lab, rewards  # noqa: F401  # fixtures
