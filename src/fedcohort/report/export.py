"""A store as plain tables: rounds, runs, scores by client and by class, and a small summary.

CSV needs nothing; Parquet needs pyarrow.
"""

from __future__ import annotations

import codecs
import csv
import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcohort.errors import InvalidInputError, MissingPackageError, StoreError
from fedcohort.files import replace_file
from fedcohort.report.served import FINAL_SCORE_COLUMNS, final_score_rows
from fedcohort.report.summary import Summary, shown_settings, summarise
from fedcohort.report.wording import final
from fedcohort.simulation.scores import score_column, score_of

if TYPE_CHECKING:
    from fedcohort.simulation.config import RunConfig
    from fedcohort.simulation.scores import Kind
    from fedcohort.simulation.store import Store

Row = dict[str, Any]
_ROWS_AT_ONCE = 50_000
# What spreadsheets begin to calculate at.
_FORMULAS = ("=", "+", "-", "@", "\t")


def export(store: Store, to: str | Path, table: str = "rounds") -> list[Path]:
    """Write tables of a store and return the files.

    A file that ends in ``.csv`` or ``.parquet`` gets one table, which `table` names; a folder, and
    what has no ending, gets all of them as CSV. Raises `InvalidInputError` for another ending.
    """
    path = Path(to)
    ending = path.suffix.lower()
    if ending not in ("", ".csv", ".parquet") and not path.is_dir():
        raise InvalidInputError(
            f"{str(path)!r} ends in {path.suffix!r}: write to FILE.csv, FILE.parquet, or a folder,"
            " which must be there already if it has a dot in its name."
        )
    if ending not in (".csv", ".parquet"):
        paths = []
        for name, made in TABLES.items():
            paths.append(path / f"{name}.csv")
            write_csv(paths[-1], made(store), _HEADS.get(name, ()))
        return paths
    rows = iter(TABLES[table](store))
    if (first := next(rows, None)) is None:
        raise StoreError(
            f"{str(store.folder)!r} has nothing for the table {table!r}: finish a run first, of a"
            " task that has it."
        )
    write = write_csv if ending == ".csv" else _write_parquet
    write(path, itertools.chain([first], rows))
    return [path]


def round_rows(store: Store) -> Iterator[Row]:
    """Yield every round of every run."""
    for config, row in rounds_of(store, store.configs()):
        yield _named(config) | row


def _named(config: RunConfig) -> Row:
    return {"run": config.key, "selector": config.selector, "seed": config.seed}


def rounds_of(store: Store, configs: Sequence[RunConfig]) -> Iterator[tuple[RunConfig, Row]]:
    """Yield every round of some runs, each with a column for every score that one of them has."""
    scores = {config.key: score_of(store.facts(config.key)) for config in configs}
    different = tuple(dict.fromkeys(scores.values()))
    for config in configs:
        for record in store.records(config.key):
            row: Row = {}
            for name, value in dataclasses.asdict(record).items():
                part, _, what = name.partition("_")
                if what == "score":
                    row |= _scored(part, value, scores[config.key], different)
                else:
                    row[name] = value
            yield config, row


def _scored(part: str, value: float | None, score: str, scores: Iterable[str]) -> Row:
    """Return the columns of some scores, of which all but one are empty."""
    return {score_column(part, other): value if other == score else None for other in scores}


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
    summaries = summarise(store, store.targets())
    scores = tuple(dict.fromkeys(summary.score for summary in summaries))
    for summary in summaries:
        shown = shown_settings(summary.config, summary.participation.shape[1])
        settings = {name: v for name, v in shown.items() if name not in ("rounds", "seed")}
        yield settings | summary_row(summary, scores)


def client_rows(store: Store) -> Iterator[Row]:
    """Yield how the final model of every run does, client by client."""
    return _final_rows(store, "client")


def class_rows(store: Store) -> Iterator[Row]:
    """Yield how the final model of every run does, class by class."""
    return _final_rows(store, "class")


def _final_rows(store: Store, kind: Kind) -> Iterator[Row]:
    for config, row in final_score_rows(store, store.configs(), kind):
        yield _named(config) | row


def summary_row(summary: Summary, scores: Iterable[str]) -> Row:
    """Return what one selector came to, as plain values, with columns for all of `scores`."""
    interval = summary.interval
    # In the test data, where there are clients in them.
    served = summary.served[-1] if summary.served else None
    return {
        "seeds": len(summary.seeds),
        "unfinished": summary.unfinished,
        "rounds": summary.rounds,
        "target": summary.target and summary.target.score,
        "target_on": summary.target and summary.target.on,
        "rounds_to_target": summary.rounds_to_target,
        "interval_low": interval and interval.low,
        "interval_high": interval and interval.high,
        "median_rounds_to_target": median_rounds(summary),
        "seeds_at_target": sum(r is not None for r in summary.rounds_to_target_by_seed),
        "seeds_diverged": sum(r is not None for r in summary.diverged_from),
        **_scored("final_train", _rounded(final(summary, "train")), summary.score, scores),
        **_scored("final_test", _rounded(final(summary, "test")), summary.score, scores),
        "worst_decile": _rounded(served.worst_decile if served else None),
        "gemd": _rounded(summary.gemd),
        "participation_variation": _rounded(summary.participation_variation),
        "bytes_to_target": summary.bytes_to_target,
        "time_to_target": _rounded(summary.time_to_target),
        "selection_ms": _rounded(1e3 * summary.selection_seconds),
        "seconds": round(summary.seconds_per_round * summary.rounds * len(summary.seeds), 3),
        "device": summary.device,
    }


def median_rounds(summary: Summary) -> float | None:
    """Return the median over seeds; a seed that never got there counts as later than all.

    None where the median, or the upper of two in the middle, is of such a seed.
    """
    late = summary.rounds + 1
    reached = [late if r is None else r for r in summary.rounds_to_target_by_seed]
    if not reached or statistics.median_high(reached) == late:
        return None
    return float(statistics.median(reached))


TABLES: dict[str, Callable[[Store], Iterable[Row]]] = {
    "rounds": round_rows,
    "runs": run_rows,
    "summary": summary_rows,
    "clients": client_rows,
    "classes": class_rows,
}


_RUN = ("run", "selector", "seed")
# Of tables that may have no rows: not every task has classes.
_HEADS = {
    "clients": (*_RUN, *FINAL_SCORE_COLUMNS["client"]),
    "classes": (*_RUN, *FINAL_SCORE_COLUMNS["class"]),
}


def write_csv(path: Path, rows: Iterable[Row], head: Sequence[str] = ()) -> None:
    """Write rows that have the same columns to a file, whole or not at all; `head` if none."""
    with replace_file(path) as whole:
        file = codecs.getwriter("utf-8")(whole)
        writer = None
        for row in rows:
            if writer is None:
                writer = csv.DictWriter(file, list(row), lineterminator="\n")
                writer.writeheader()
            writer.writerow({name: _plain(value) for name, value in row.items()})
        if writer is None and head:
            csv.writer(file, lineterminator="\n").writerow(head)


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
