"""Labs to write from and to read into."""

from tests.trajectories.files.conftest import desk, open_desk, recorded  # noqa: F401  # fixtures
