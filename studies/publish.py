"""Put results into the package, for `fedcohort arena`: src/fedcohort/leaderboard/published.npz.

    python studies/publish.py docs/results/leaderboard*.sqlite.xz

A store is the --out folder of a study, or its packed file (.sqlite.xz). The conditions are those of
studies/leaderboard.toml; what is not finished in the stores, or has no target in the study, is left
out, and named.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import lzma
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from drawing import NotInStoreError, run_script

from fedcohort.files import replace_file
from fedcohort.leaderboard.conditions import BASELINE, Condition, conditions_of_study
from fedcohort.leaderboard.published import FILE, write_published
from fedcohort.report.summary import summarise
from fedcohort.simulation import Store
from fedcohort.simulation.merging import merge
from fedcohort.simulation.store import FILE_NAME
from fedcohort.simulation.study import Study, read_study

STUDY = Path(__file__).with_name("leaderboard.toml")
FEWEST_SEEDS = 5
# Of the leaderboard's targets, which are multiples of it.
STEP = 0.05


def finished(conditions: Sequence[Condition], store: Store) -> list[Condition]:
    """Return conditions with the selectors that were run and the seeds that all of these finished.

    A selector that lacks seeds where others have five is left out, so that it does not cost them
    theirs. What is left out is printed.
    """
    found = []
    for condition in conditions:
        done = {
            selector: {c.seed for c in condition.runs(selector) if store.is_done(c.key)}
            for selector in condition.selectors
        }
        fewest = min(FEWEST_SEEDS, max(map(len, done.values()))) or 1
        begun = tuple(selector for selector, seeds in done.items() if len(seeds) >= fewest)
        seeds = set(condition.seeds).intersection(*(done[selector] for selector in begun))
        if BASELINE not in begun or not seeds:
            print(f"{condition.name} is left out.", file=sys.stderr)
            continue
        kept = dataclasses.replace(condition, selectors=begun, seeds=tuple(sorted(seeds)))
        found.append(kept)
        for what in ("selectors", "seeds"):
            missing = [x for x in getattr(condition, what) if x not in getattr(kept, what)]
            if missing:
                names = ", ".join(map(str, missing))
                print(f"{condition.name}: left out are the {what} {names}.", file=sys.stderr)
    if not found:
        raise NotInStoreError("The stores hold no condition of the leaderboard that is finished.")
    return found


def reachable(curve: npt.ArrayLike, step: float = STEP) -> float:
    """Return the highest multiple of a step that a mean curve reaches: the rule for targets."""
    return round(math.floor(float(np.nanmax(curve)) / step + 1e-9) * step, 9)


def name_untargeted(study: Study, store: Store) -> None:
    """Print which parts were run but have no target, and what the rule for targets gives."""
    for part in study.parts:
        if part.target is not None:
            continue
        uniform = (c.of_today() for c in part.configs if c.selector == BASELINE)
        done = [config for config in uniform if store.is_done(config.key)]
        for summary in summarise(store, None, done):
            if summary.test is not None:
                highest = reachable(summary.test.mean)
                print(
                    f"{part.name!r} has no target in the study, and is left out: {BASELINE} reaches"
                    f" {highest:g} on the test part in {summary.panel}.",
                    file=sys.stderr,
                )


def publish(stores: Sequence[Path], to: Path = FILE, study: Path = STUDY) -> None:
    """Write the runs of some stores into one file."""
    with together(stores) as store:
        said = read_study(study)
        name_untargeted(said, store)
        wanted = finished(conditions_of_study(said), store)
        with replace_file(to) as file:
            write_published(file, wanted, store)


@contextlib.contextmanager
def together(stores: Sequence[Path]) -> Iterator[Store]:
    """Yield one store, for a while, with the finished runs of several, folders or packed files."""
    with tempfile.TemporaryDirectory() as scratch, Store(Path(scratch) / "all") as store:
        for number, path in enumerate(stores):
            merge(store, _unpacked(path, Path(scratch) / str(number)))
        yield store


def _unpacked(path: Path, folder: Path) -> Path:
    if path.is_dir():
        return path
    folder.mkdir()
    with lzma.open(path) as packed, open(folder / FILE_NAME, "wb") as file:
        shutil.copyfileobj(packed, file)
    return folder


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options and publish."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path, nargs="+", help="a study's folder, or .sqlite.xz")
    parser.add_argument("-o", "--output", type=Path, default=FILE, help="the file (the package's)")
    options = parser.parse_args(arguments)
    publish(options.store, options.output)
    print(f"{options.output}: {options.output.stat().st_size:,} bytes")


if __name__ == "__main__":
    run_script(main)
