"""Profiling methods and initialisations of a study over the seeds that they share.

    python studies/same_seeds.py paper [--csv FILE]

writes `same-seeds.csv`. Where runs of a selector differ in the profiling method or the
initialisation alone, there is a row for each: rounds to the target over the seeds that all of them
have, the paired difference from the first, its 95 % interval and p-value (none for `fedavg`, which
summaries compare others with). Fifty seeds of one against ten of another would compare seeds too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from drawing import TARGET, finished_runs, read_options, run_script, write_table_of

from fedcohort.report.summary import Summary, summarise
from fedcohort.simulation import RunConfig, Store
from fedcohort.simulation.config import SETTINGS

VARIED = ("profile", "init")


def same_seeds(store: Store) -> list[dict[str, Any]]:
    """Return a row for each value of a setting that varies alone."""
    finished = finished_runs(store)
    return [
        {"setting": setting, "value": getattr(summary.config, setting)} | _row(summary)
        for setting in VARIED
        for configs in _alone(finished, setting)
        for summary in summarise(store, store.targets() or TARGET, configs)
    ]


def _alone(configs: Iterable[RunConfig], setting: str) -> Iterator[list[RunConfig]]:
    """Yield runs that differ in a setting alone, of the seeds that all its values have."""
    usual = SETTINGS[setting].default
    found: dict[RunConfig, dict[Any, dict[int, RunConfig]]] = {}
    for config in configs:
        rest = dataclasses.replace(config, seed=0, **{setting: usual})
        value = getattr(config, setting)
        found.setdefault(rest, {}).setdefault(value, {})[config.seed] = config
    for values in found.values():
        shared = set.intersection(*(set(runs) for runs in values.values()))
        if len(values) > 1 and len(shared) > 1:
            # Differences are from the first.
            for_all = sorted(values, key=lambda value: value != usual)
            yield [values[value][seed] for value in for_all for seed in sorted(shared)]


def _row(summary: Summary) -> dict[str, Any]:
    interval, paired = summary.interval, summary.comparison
    return {
        "dataset": summary.dataset,
        "skew": summary.skew,
        "selector": summary.selector,
        "seeds": len(summary.seeds),
        "rounds": summary.rounds,
        "rounds_to_target": summary.rounds_to_target,
        "interval_low": interval and interval.low,
        "interval_high": interval and interval.high,
        "gemd": summary.gemd and round(summary.gemd, 5),
        "difference": paired and paired.difference,
        "difference_low": paired and paired.low,
        "difference_high": paired and paired.high,
        "p_value": paired and round(paired.p_value, 3),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table of a study."""
    write_table_of(
        same_seeds,
        read_options(__doc__, arguments, table="same-seeds.csv"),
        "There is nothing to compare in {}: no selector has two finished runs with each of two"
        " profiling methods or initialisations. Finish the study first.",
    )


if __name__ == "__main__":
    run_script(main)
