"""The tools of the site are imported by their plain name."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "docs" / "tools"))
