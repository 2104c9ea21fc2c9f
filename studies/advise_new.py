"""Was the advice right in conditions that it was not calibrated with?

    python studies/advise_new.py STORE... [--csv FILE] [--profiles FOLDER]

takes the parts of studies/advise-new.toml, or of another --study, from stores that hold their runs,
and writes a table of the gain that the constants of `fedcohort/advice.py` predict beside the
measured one, as studies/advise.py measures it; targets follow the leaderboard's rule. Last it
prints rank correlations: of these conditions, and of these and the calibration's together, held out
by pairs (studies/held_out.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from advise import BASELINE, SELECTOR, Pair, advice_on, in_both_ways, means, row_of
from drawing import run_script
from held_out import TABLE, read_table
from publish import STEP, together
from scipy.stats import spearmanr

from fedcohort import Advice
from fedcohort.advice import predicted_gain
from fedcohort.leaderboard.conditions import Condition, setting_of
from fedcohort.leaderboard.entries import read_entry
from fedcohort.report.export import write_csv
from fedcohort.simulation import Store
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.scores import Target
from fedcohort.simulation.study import Part, read_study

STUDY = Path(__file__).with_name("advise-new.toml")


def pair_of(part: Part, store: Store) -> Pair:
    """Return what came of both rules in a part, with the target that the leaderboard would set."""
    seeds = tuple(sorted({config.seed for config in part.configs}))
    condition = Condition(
        part.name, part.name, setting_of(part.configs[0]), Target(1.0, "test"), seeds, ()
    )
    both = (
        read_entry(store, condition.runs(rule), rule, condition.target)
        for rule in (BASELINE, SELECTOR)
    )
    return Pair(condition, *both).targeted("test", STEP)


def predicted_row(pair: Pair, said: Sequence[Advice]) -> dict[str, Any]:
    """Return a row of the table."""
    spread, felt, left = means(said)
    gain = predicted_gain(spread, left, felt)
    assert gain is not None
    return row_of(pair, said) | {"predicted": round(gain, 3)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path, nargs="+", help="a study's folder, or .sqlite.xz")
    parser.add_argument("--csv", type=Path, default=Path("advise-new.csv"), metavar="FILE")
    parser.add_argument("--study", type=Path, default=STUDY, help="the conditions")
    parser.add_argument("--profiles", type=Path, default=Path("advise/profiles"), metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=3, help="federations per condition (3)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    options = parser.parse_args(arguments)
    with together(options.store) as store:
        found = [pair_of(part, store) for part in read_study(options.study).parts]
    materials = Materials()
    rows = []
    for pair in found:
        said = advice_on(pair, options.seeds, options.profiles, materials, options.device)
        rows.append(predicted_row(pair, said))
        print(rows[-1], flush=True)
    write_csv(options.csv, rows)
    predicted, measured = (
        np.log2([row[name] for row in rows]) for name in ("predicted", "measured")
    )
    missed = predicted - measured
    print(f"rank correlation {spearmanr(predicted, measured)[0]:.3f}", end=", ")
    print(f"misses by {2 ** np.abs(missed).mean():.3f} in the mean")
    both = read_table(TABLE) + rows
    print(f"with the calibration's, {len(both)} in all: {in_both_ways(both)}")


if __name__ == "__main__":
    run_script(main)
