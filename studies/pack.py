"""Pack the finished runs of a study into one small file, as they stand in docs/results.

    python studies/pack.py DIR docs/results/leaderboard-writers.sqlite.xz

What the final models' losses are on single clients and classes is left out: it is most of a store,
and no table shows it. `xz -d` makes DIR's results.sqlite of the file again.
"""

from __future__ import annotations

import argparse
import lzma
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from drawing import run_script

from fedcohort.files import replace_file
from fedcohort.simulation import Store
from fedcohort.simulation.merging import merge


def pack(folder: Path, to: Path) -> None:
    """Write the finished runs of a folder into one file; the folder is left as it is."""
    Store.existing(folder).close()
    with tempfile.TemporaryDirectory() as scratch:
        with Store(scratch) as small:
            merge(small, folder)
            small.db.execute("UPDATE final_scores SET loss = NULL")
            small.db.execute("DELETE FROM parts WHERE run NOT IN (SELECT run FROM runs)")
            # One file without a log beside it, and without room that is not used.
            small.db.execute("PRAGMA journal_mode = DELETE")
            small.db.execute("VACUUM")
            path = small.path
        with (
            open(path, "rb") as file,
            replace_file(to) as whole,
            lzma.open(whole, "wb", preset=9 | lzma.PRESET_EXTREME) as packed,
        ):
            shutil.copyfileobj(file, packed)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options and pack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path, help="the --out folder of a study")
    parser.add_argument("to", type=Path, help="the file, which ends in .sqlite.xz")
    options = parser.parse_args(arguments)
    pack(options.study, options.to)
    print(f"{options.to}: {options.to.stat().st_size:,} bytes")


if __name__ == "__main__":
    run_script(main)
