"""The scripts beside the studies are imported by their plain name."""

import sys
from pathlib import Path

from small_stores import copy_runs, store, varied_store

__all__ = ["copy_runs", "store", "varied_store"]

sys.path.append(str(Path(__file__).parents[2] / "studies"))
