"""Rounds to 50 % and 55 % test accuracy, from the store of studies/cifar.toml.

    python studies/cifar.py DIR [--csv FILE]

Prints a Markdown table: rounds of the mean curve, with 95 % bootstrap intervals over the seeds,
the test accuracy of the last ten evaluations (mean over the seeds, and 1.96 standard errors) and
the mean GEMD of the cohorts.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from drawing import run_script

from fedcohort.metrics import bootstrap_interval, rounds_to_target
from fedcohort.randomness import generator
from fedcohort.report.export import Row, write_csv
from fedcohort.report.summary import Summary, summarise
from fedcohort.simulation import Store

TARGETS = (0.5, 0.55)


def rows_of(summaries: Sequence[Summary]) -> list[Row]:
    """Return one row per selector and condition: rounds to each target, and where it ends."""
    rows: list[Row] = []
    for summary in summaries:
        if summary.test is None:
            continue
        row: Row = {"skew": summary.config.skew, "cohort": summary.config.cohort}
        row |= {"selector": summary.label, "seeds": len(summary.seeds), "rounds": summary.rounds}
        curves = summary.evaluated_rounds, summary.test.seeds
        for target in TARGETS:
            interval = bootstrap_interval(*curves, target, rng=generator(0, "report bootstrap"))
            ends = (rounds_to_target(*curves, target), interval.low, interval.high)
            reached, low, high = (f">{summary.rounds}" if e is None else str(e) for e in ends)
            row[f"to_{100 * target:.0f}"] = (
                reached if low == reached else f"{reached} ({low}–{high})"
            )
        last = summary.test.seeds[:, -10:].mean(axis=1)
        error = last.std(ddof=1) / len(last) ** 0.5 if len(last) > 1 else float("nan")
        row["final"] = f"{last.mean():.3f} ± {1.96 * error:.3f}"
        row["gemd"] = None if summary.gemd is None else round(summary.gemd, 3)
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, and write it if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="The --out folder of the study.")
    parser.add_argument("--csv", type=Path, help="Write the table to this file too.")
    options = parser.parse_args(arguments)
    with Store.existing(options.folder) as store:
        rows = rows_of(summarise(store, None))
    if options.csv:
        write_csv(options.csv, rows)
    print("|", " | ".join(rows[0]), "|")
    print("|" + "---|" * len(rows[0]))
    for row in rows:
        print("|", " | ".join(str(value) for value in row.values()), "|")


if __name__ == "__main__":
    run_script(main)
