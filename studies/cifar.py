"""Rounds and bytes to test accuracies, from the store of studies/cifar.toml or fedxplore.toml.

    python studies/cifar.py DIR [--targets 0.5 0.55] [--last 10] [--csv FILE]

Prints a Markdown table: rounds of the mean curve, with 95 % bootstrap intervals over the seeds, the
megabytes sent both ways until then, the test accuracy of the last evaluations (mean over the
seeds, and 1.96 standard errors) and the mean GEMD of the cohorts.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from drawing import NotInStoreError, run_script

from fedcohort.report.export import Row, write_csv
from fedcohort.report.summary import Summary, summarise
from fedcohort.simulation import Store
from fedcohort.simulation.scores import Target
from fedcohort.simulation.study import check_target


def table_rows(store: Store, targets: Sequence[float], last: int) -> list[Row]:
    """Return one row per selector and condition: rounds to each target, and where it ends."""
    counted = [summarise(store, Target(target, "test")) for target in targets]
    rows: list[Row] = []
    for to_each in zip(*counted, strict=True):
        summary = to_each[0]
        if summary.test is None:
            continue
        row: Row = {"skew": summary.config.skew, "cohort": summary.config.cohort}
        row |= {"selector": summary.label, "seeds": len(summary.seeds), "rounds": summary.rounds}
        for target, of in zip(targets, to_each, strict=True):
            sent = of.bytes_to_target
            row[f"to_{100 * target:g}"] = _reached(of)
            row[f"mb_to_{100 * target:g}"] = None if sent is None else round(sent / 1e6, 1)
        ends = summary.test.seeds[:, -last:].mean(axis=1)
        error = ends.std(ddof=1) / np.sqrt(len(ends)) if len(ends) > 1 else float("nan")
        row["final"] = f"{ends.mean():.3f} ± {1.96 * error:.3f}"
        row["gemd"] = None if summary.gemd is None else round(summary.gemd, 3)
        rows.append(row)
    if not rows:
        raise NotInStoreError(f"{store.folder} has no run with a test accuracy.")
    return rows


def _reached(summary: Summary) -> str:
    """Return the rounds to the target with their interval; what is not reached is beyond all."""
    interval = summary.interval
    ends = (summary.rounds_to_target, *((interval.low, interval.high) if interval else ()))
    reached, *around = (f">{summary.rounds}" if end is None else str(end) for end in ends)
    return reached if around in ([], [reached, reached]) else f"{reached} ({'–'.join(around)})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, and write it if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="The --out folder of the study.")
    parser.add_argument(
        "--targets", type=float, nargs="+", default=[0.5, 0.55], help="Test accuracies to reach."
    )
    parser.add_argument(
        "--last", type=int, default=10, help="Evaluations that the end is a mean of."
    )
    parser.add_argument("--csv", type=Path, help="Write the table to this file too.")
    options = parser.parse_args(arguments)
    if options.last < 1:
        parser.error("--last must be at least 1.")
    targets = [check_target(target, "--targets") for target in options.targets]
    with Store.existing(options.folder) as store:
        rows = table_rows(store, targets, options.last)
    if options.csv:
        write_csv(options.csv, rows)
    print("|", " | ".join(rows[0]), "|")
    print("|" + "---|" * len(rows[0]))
    for row in rows:
        print("|", " | ".join(str(value) for value in row.values()), "|")


if __name__ == "__main__":
    run_script(main)
