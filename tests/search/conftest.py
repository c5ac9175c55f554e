"""What several tests of searches share is in files beside them, which are found here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
