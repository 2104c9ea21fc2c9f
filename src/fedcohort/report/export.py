"""A store as plain tables: rounds, runs, and a summary small enough to be committed.

CSV needs nothing; Parquet needs pyarrow.
"""

from __future__ import annotations

import codecs
import csv
import dataclasses
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcohort.errors import MissingPackageError
from fedcohort.files import replace_file
from fedcohort.report.summary import Summary, shown_settings, summarise
from fedcohort.report.wording import final

if TYPE_CHECKING:
    from fedcohort.simulation.config import RunConfig
    from fedcohort.simulation.store import Store

Row = dict[str, Any]
_ROWS_AT_ONCE = 50_000
# What spreadsheets begin to calculate at.
_FORMULAS = ("=", "+", "-", "@", "\t")


def export(store: Store, to: str | Path, table: str = "rounds") -> list[Path]:
    """Write tables of a store.

    Parameters
    ----------
    store : Store
        Where the runs are.
    to : path-like
        A file that ends in ``.csv`` or ``.parquet`` gets one table; anything else is a folder that
        gets all of them as CSV.
    table : {"rounds", "runs", "summary"}
        Which one, of a single file.

    Returns
    -------
    list of Path
        The files.
    """
    path = Path(to)
    ending = path.suffix.lower()
    if ending not in (".csv", ".parquet"):
        paths = []
        for name, rows in TABLES.items():
            paths.append(path / f"{name}.csv")
            write_csv(paths[-1], rows(store))
        return paths
    write = write_csv if ending == ".csv" else _write_parquet
    write(path, TABLES[table](store))
    return [path]


def round_rows(store: Store) -> Iterator[Row]:
    """Yield every round of every run."""
    for config in store.configs():
        for row in rounds_of(store, config):
            yield {"run": config.key, **row}


def rounds_of(store: Store, config: RunConfig) -> Iterator[Row]:
    """Yield every round of one run."""
    for record in store.records(config.key):
        yield dataclasses.asdict(record)


def run_rows(store: Store) -> Iterator[Row]:
    """Yield every run: its settings, whether it is finished, and where it ran."""
    for config in store.configs():
        facts = store.facts(config.key)
        yield {
            "run": config.key,
            **shown_settings(config, facts["clients"]),
            "done": store.is_done(config.key),
            **{
                name: facts.get(name)
                for name in ("model_bytes", "profile_bytes", "device", "torch")
            },
        }


def summary_rows(store: Store) -> Iterator[Row]:
    """Yield one row per selector and setting, over its seeds."""
    for summary in summarise(store, store.targets()):
        shown = shown_settings(summary.config, summary.participation.shape[1])
        settings = {name: v for name, v in shown.items() if name not in ("rounds", "seed")}
        yield settings | summary_row(summary)


def summary_row(summary: Summary) -> Row:
    """Return what one selector came to, as plain values."""
    interval = summary.interval
    return {
        "seeds": len(summary.seeds),
        "unfinished": summary.unfinished,
        "rounds": summary.rounds,
        "target": summary.target,
        "rounds_to_target": summary.rounds_to_target,
        "interval_low": interval and interval.low,
        "interval_high": interval and interval.high,
        "median_rounds_to_target": median_rounds(summary),
        "seeds_at_target": sum(r is not None for r in summary.rounds_to_target_by_seed),
        "final_train_accuracy": _rounded(final(summary, "train")),
        "final_test_accuracy": _rounded(final(summary, "test")),
        "gemd": _rounded(summary.gemd),
        "participation_variation": _rounded(summary.participation_variation),
        "bytes_to_target": summary.bytes_to_target,
        "time_to_target": _rounded(summary.time_to_target),
        "selection_ms": _rounded(1e3 * summary.selection_seconds),
        "seconds": round(summary.seconds_per_round * summary.rounds * len(summary.seeds), 3),
        "device": summary.device,
    }


def median_rounds(summary: Summary) -> float | None:
    """Return the median over seeds; a seed that never got there counts as later than all."""
    late = summary.rounds + 1
    reached = [late if r is None else r for r in summary.rounds_to_target_by_seed]
    middle = statistics.median(reached) if reached else late
    return None if middle >= late else float(middle)


TABLES: dict[str, Callable[[Store], Iterable[Row]]] = {
    "rounds": round_rows,
    "runs": run_rows,
    "summary": summary_rows,
}


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    """Write rows that have the same columns to a file, whole or not at all."""
    with replace_file(path) as whole:
        file = codecs.getwriter("utf-8")(whole)
        writer = None
        for row in rows:
            if writer is None:
                writer = csv.DictWriter(file, list(row), lineterminator="\n")
                writer.writeheader()
            writer.writerow({name: _plain(value) for name, value in row.items()})


def _write_parquet(path: Path, rows: Iterable[Row]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingPackageError("Parquet", "parquet", error) from error
    with replace_file(path) as file:
        parts = [pyarrow.Table.from_pylist(part) for part in _parts(rows)]
        # A column that is empty in one part has no type there.
        joined = pyarrow.concat_tables(parts, promote_options="permissive")
        parquet.write_table(joined, file)


def _parts(rows: Iterable[Row]) -> Iterator[Sequence[Row]]:
    part: list[Row] = []
    for row in rows:
        part.append({k: list(v) if isinstance(v, tuple) else v for k, v in row.items()})
        if len(part) == _ROWS_AT_ONCE:
            yield part
            part = []
    yield part


def _plain(value: Any) -> Any:
    """Return a cell; a text that spreadsheets would calculate gets an apostrophe before it."""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else value


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)
