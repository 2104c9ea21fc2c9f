"""The attacks are beside the benchmark that measures them, and imported by their plain name."""

import sys
from pathlib import Path

# Last, since `markdown` there is not the package of that name.
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
