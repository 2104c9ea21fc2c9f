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
        row: Row = {"condition": summary.panel, "selector": summary.label}
        row |= {"seeds": len(summary.seeds), "rounds": summary.rounds}
        for target in TARGETS:
            curves = summary.evaluated_rounds, summary.test.seeds
            interval = bootstrap_interval(*curves, target, rng=generator(0, "report bootstrap"))
            row[f"rounds_to_{target:g}"] = rounds_to_target(*curves, target)
            row[f"low_{target:g}"], row[f"high_{target:g}"] = interval.low, interval.high
        last = summary.test.seeds[:, -10:].mean(axis=1)
        row["final_test_accuracy"] = round(float(last.mean()), 4)
        error = last.std(ddof=1) / len(last) ** 0.5 if len(last) > 1 else float("nan")
        row["final_half_width"] = round(1.96 * float(error), 4)
        row["best_test_accuracy"] = round(float(summary.test.mean.max()), 4)
        row["gemd"] = None if summary.gemd is None else round(summary.gemd, 3)
        rows.append(row)
    return rows


def _cell(row: Row, target: float) -> str:
    def bound(value: int | None) -> str:
        return f">{row['rounds']}" if value is None else str(value)

    ends = f"{bound(row[f'low_{target:g}'])}–{bound(row[f'high_{target:g}'])}"
    return f"{bound(row[f'rounds_to_{target:g}'])} ({ends})"


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
    heads = [f"rounds to {target:.0%}".replace("%", " %") for target in TARGETS]
    print("| condition | selector |", " | ".join(heads), "| final test accuracy | GEMD | seeds |")
    print("|---|---|" + "---|" * (len(heads) + 3))
    for row in rows:
        cells = " | ".join(_cell(row, target) for target in TARGETS)
        final = f"{row['final_test_accuracy']:.3f} ± {row['final_half_width']:.3f}"
        ends = f"{final} | {row['gemd']} | {row['seeds']}"
        print(f"| {row['condition']} | `{row['selector']}` | {cells} | {ends} |")


if __name__ == "__main__":
    run_script(main)
