"""How many runs of a study died: those that end no better than guessing.

    python studies/deaths.py paper [--csv FILE]

writes `deaths.csv`, a row per setting and selector with its finished runs (`seeds`) and how many of
them died. A run died if its training accuracy after the last round is below one and a half times
that of guessing, 15 % with ten classes; it may have been good before, or never. Runs of a single
round, which had no time to live, are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drawing import finished_runs, read_options, run_script, write_table_of

from fedcohort.report.summary import summarise
from fedcohort.simulation import Store

SETTINGS = ("samples_per_client", "clients", "inputs", "lr", "init", "profile", "rounds")
_TIMES_GUESSING = 1.5


def died(accuracy: float, classes: int) -> bool:
    """Tell whether a run that ends with this training accuracy is no better than guessing."""
    return accuracy < _TIMES_GUESSING / classes


def deaths(store: Store) -> list[dict[str, Any]]:
    """Return how many finished runs died, a row per setting and selector."""
    finished = finished_runs(store)
    rows = []
    for summary in summarise(store, None, finished) if finished else ():
        if summary.score == "accuracy" and summary.rounds > 1:
            classes = store.federation(summary.config)["label_counts"].shape[1]
            ends = summary.train.seeds[:, -1]
            rows.append(
                {
                    "dataset": summary.dataset,
                    "skew": summary.skew,
                    **{name: getattr(summary.config, name) for name in SETTINGS},
                    "selector": summary.selector,
                    "seeds": len(ends),
                    "died": sum(died(end, classes) for end in ends),
                }
            )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table of a study."""
    write_table_of(
        deaths,
        read_options(__doc__, arguments, table="deaths.csv"),
        "There are no deaths to count in {}: it has no finished run of several rounds that is"
        " judged by its accuracy. Finish the study first.",
    )


if __name__ == "__main__":
    run_script(main)
