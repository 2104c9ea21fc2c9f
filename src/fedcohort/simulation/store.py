"""Results in one SQLite file: crash-safe, queryable, resumable."""

import contextlib
import dataclasses
import io
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import InvalidInputError, StoreError, UnwritableFileError
from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.scores import FinalScore, Kind, Target
from fedcohort.simulation.store_file import (
    check_store,
    create_store,
    damaged,
    is_archived,
    open_store,
)

FILE_NAME = "results.sqlite"
RESUME = "what was saved before is whole; make room and give the same command again to resume."
# Format 1 had no groups and no simulated time: its unfinished runs begin again. Up to format 2
# every score was called accuracy, up to format 3 none was kept by client or class, and up to
# format 4 every target was one of the training score.
_FORMAT = 5

_SCHEMA = """
CREATE TABLE IF NOT EXISTS federations (federation TEXT PRIMARY KEY, arrays BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS runs (
    run TEXT PRIMARY KEY, config TEXT NOT NULL, facts TEXT NOT NULL, done INTEGER NOT NULL,
    federation TEXT NOT NULL REFERENCES federations
) STRICT;
CREATE TABLE IF NOT EXISTS rounds (
    run TEXT NOT NULL REFERENCES runs, round INTEGER NOT NULL,
    train_score REAL, train_loss REAL, test_score REAL, test_loss REAL, gemd REAL,
    cohort TEXT NOT NULL, left_out TEXT NOT NULL,
    bytes_down INTEGER NOT NULL, bytes_up INTEGER NOT NULL,
    elapsed REAL NOT NULL, seconds REAL NOT NULL, selection_seconds REAL NOT NULL,
    PRIMARY KEY (run, round)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS final_scores (
    run TEXT NOT NULL REFERENCES runs, part TEXT NOT NULL, kind TEXT NOT NULL,
    number INTEGER NOT NULL, samples INTEGER NOT NULL, score REAL, loss REAL,
    PRIMARY KEY (run, part, kind, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS studies (study TEXT PRIMARY KEY, source TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS parts (
    study TEXT NOT NULL, part TEXT NOT NULL, place INTEGER NOT NULL, run TEXT NOT NULL, target REAL,
    target_on TEXT NOT NULL DEFAULT 'train',
    PRIMARY KEY (study, part, run)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS groups (
    grp TEXT PRIMARY KEY, place INTEGER NOT NULL, rounds INTEGER NOT NULL, runs INTEGER NOT NULL,
    shape TEXT NOT NULL, cost REAL NOT NULL, round INTEGER NOT NULL, seconds REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS members (
    run TEXT PRIMARY KEY, place INTEGER NOT NULL, config TEXT NOT NULL, profiled INTEGER NOT NULL,
    grp TEXT NOT NULL REFERENCES groups, seat INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS claims (
    grp TEXT PRIMARY KEY REFERENCES groups, holder TEXT NOT NULL, host TEXT NOT NULL,
    pid INTEGER NOT NULL, started INTEGER NOT NULL, beat REAL NOT NULL, round INTEGER NOT NULL
) STRICT;
"""
# What depends on the clock: all else is the same however often a study was interrupted.
WALL_CLOCK = {"rounds": ("seconds", "selection_seconds"), "groups": ("seconds",)}


@dataclasses.dataclass(frozen=True)
class RoundRecord:
    """What happened in one round of one run; round 0 is the initial model.

    Attributes
    ----------
    train_score, train_loss, test_score, test_loss : float or None
        Of the global model after the round; None where it was not evaluated, or is no number. The
        run's facts say which score it is.
    gemd : float or None
        How far the label mixture of all who were chosen is from everyone's; None for round 0.
    cohort, left_out : tuple of int
        Who was chosen, and whose update was not used (dropped out or not finite).
    bytes_down, bytes_up : int
        Sent to clients and by clients.
    elapsed : float
        Simulated time that the round took (see `fedcohort.simulation.system`).
    seconds, selection_seconds : float
        Wall-clock time of the round, divided by the runs in lockstep, and of its selection.

    Examples
    --------
    >>> RoundRecord(3, test_score=0.91, gemd=0.2, cohort=(4, 8)).cohort
    (4, 8)
    """

    round: int
    train_score: float | None = None
    train_loss: float | None = None
    test_score: float | None = None
    test_loss: float | None = None
    gemd: float | None = None
    cohort: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()
    bytes_down: int = 0
    bytes_up: int = 0
    elapsed: float = 0.0
    seconds: float = 0.0
    selection_seconds: float = 0.0


_FIELDS = [field.name for field in dataclasses.fields(RoundRecord)]
_CLIENT_LISTS = [_FIELDS.index(name) for name in ("cohort", "left_out")]

RunState = tuple[int, dict[str, NDArray[Any]]]


class Facts(dict[str, Any]):
    """What is known about a run besides its configuration; what is not there is damage."""

    def __init__(self, path: Path, run: str, text: str) -> None:
        try:
            super().__init__(json.loads(text))
        except (TypeError, ValueError) as error:
            raise damaged(path, f"the facts of run {run!r}: {error}") from error
        self._where = path, run

    def __missing__(self, name: str) -> Any:
        path, run = self._where
        raise damaged(path, f"the facts of run {run!r} do not say {name!r}")


class Store:
    """The runs of one output folder.

    Parameters
    ----------
    folder : path-like
        Created if missing; the file in it is ``results.sqlite``. One that nobody may write to can
        be read.

    Raises
    ------
    DamagedStoreError
        When the file is not what fedcohort wrote; it is left as it is.
    StoreError
        When the folder cannot be used, or another version of fedcohort wrote its file.

    Examples
    --------
    >>> with Store.existing("fedcohort-out") as store:  # doctest: +SKIP
    ...     configs = store.configs()
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / FILE_NAME
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not self.path.exists():
                create_store(self.path, _SCHEMA, _FORMAT)
            check_store(self.path, _SCHEMA, _FORMAT)
            self.db = open_store(self.path)
            if not is_archived(self.path):
                self.db.execute("PRAGMA journal_mode=WAL")
                self.db.execute("PRAGMA synchronous=FULL")
                self._bring_up_to_date()
        except (OSError, sqlite3.Error) as error:
            raise StoreError(
                f"The output folder {str(folder)!r} cannot be used ({error}): choose another one"
                " or free its path."
            ) from error

    @classmethod
    def existing(cls, folder: str | Path) -> Self:
        """Open the store of a folder that must hold one already."""
        if not (Path(folder) / FILE_NAME).is_file():
            raise StoreError(
                f"There are no results in {str(folder)!r}: give the folder that was --out of a run."
            )
        return cls(folder)

    def _bring_up_to_date(self) -> None:
        (version,) = self.db.execute("PRAGMA user_version").fetchone()
        if version == _FORMAT:
            return
        with self.transaction():
            for statement in filter(str.strip, _SCHEMA.split(";")):
                self.db.execute(statement)
            columns = [row[1] for row in self.db.execute("PRAGMA table_info(rounds)")]
            if "elapsed" not in columns:
                self.db.execute("ALTER TABLE rounds ADD COLUMN elapsed REAL NOT NULL DEFAULT 0")
            for part in ("train", "test"):
                if f"{part}_accuracy" in columns:
                    self.db.execute(
                        f"ALTER TABLE rounds RENAME COLUMN {part}_accuracy TO {part}_score"
                    )
            if "target_on" not in [row[1] for row in self.db.execute("PRAGMA table_info(parts)")]:
                self.db.execute(
                    "ALTER TABLE parts ADD COLUMN target_on TEXT NOT NULL DEFAULT 'train'"
                )
            self.db.execute(f"PRAGMA user_version={_FORMAT}")

    def close(self) -> None:
        """Close the file."""
        self.db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Do all that is written inside, or nothing; inside another one, be part of it.

        Raises
        ------
        StoreError
            When the file cannot be written, because the disk is full for example.
        """
        if self.db.in_transaction:
            yield
            return
        try:
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                # SQLite may have rolled back by itself, after a full disk for example.
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise
            self.db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise UnwritableFileError(
                f"The results in {str(self.folder)!r} cannot be written ({error}): {RESUME}"
            ) from error

    # -- writing ---------------------------------------------------------------------------

    def begin(
        self, config: RunConfig, facts: Mapping[str, Any], federation: Mapping[str, NDArray[Any]]
    ) -> None:
        """Enter a run, with what else is worth knowing: model size, device.

        The federation is shared by all runs of one `RunConfig.federation_key`: ``label_counts``
        [C, N], if some selector needed them ``profiles`` [C, Q], and where the data name clients
        ``client_names`` [C] and ``test_client_names``.
        """
        with self.transaction():
            known = self._federation(config.federation_key) or {}
            if federation.keys() - known.keys():
                self.db.execute(
                    "INSERT OR REPLACE INTO federations VALUES (?, ?)",
                    (config.federation_key, _pack({**known, **federation})),
                )
            self.db.execute(
                "INSERT INTO runs VALUES (?, ?, ?, 0, ?)"
                " ON CONFLICT (run) DO UPDATE SET facts = excluded.facts",
                (
                    config.key,
                    config.to_json(),
                    json.dumps(dict(facts), sort_keys=True),
                    config.federation_key,
                ),
            )

    def save(
        self,
        records: Mapping[str, Iterable[RoundRecord]],
        scores: Mapping[str, Iterable[FinalScore]] | None = None,
        *,
        done: bool = False,
    ) -> None:
        """Write new rounds by run in one transaction.

        `scores` say by run how its final model does by client and by class; `done`, that these
        runs are finished.
        """
        marks = ", ".join("?" for _ in range(len(_FIELDS) + 1))
        insert = f"INSERT OR REPLACE INTO rounds (run, {', '.join(_FIELDS)}) VALUES ({marks})"
        with self.transaction():
            for run, rows in records.items():
                self.db.executemany(insert, ((run, *_row(record)) for record in rows))
                if done:
                    self.db.execute("UPDATE runs SET done = 1 WHERE run = ?", (run,))
            for run, found in (scores or {}).items():
                self.db.executemany(
                    "INSERT OR REPLACE INTO final_scores VALUES (?, ?, ?, ?, ?, ?, ?)",
                    ((run, *dataclasses.astuple(score)) for score in found),
                )

    # -- reading ---------------------------------------------------------------------------

    def configs(self) -> list[RunConfig]:
        """Return the configurations of all runs that were begun, in the order they were entered."""
        query = (
            "SELECT runs.config FROM runs LEFT JOIN members USING (run)"
            " ORDER BY members.place, runs.rowid"
        )
        return [self.read_config(text) for (text,) in self.db.execute(query)]

    def read_config(self, text: str) -> RunConfig:
        """Return a configuration as this store holds it."""
        try:
            return RunConfig.from_json(text)
        except InvalidInputError as error:
            raise damaged(self.path, f"a run's settings: {error}") from error

    def targets(self) -> dict[str, Target]:
        """Return the target of each run that a study gave one, by its key."""
        query = (
            "SELECT run, target, target_on FROM parts WHERE target IS NOT NULL ORDER BY place DESC"
        )
        return {run: Target(score, on) for run, score, on in self.db.execute(query).fetchall()}

    def facts(self, run: str) -> dict[str, Any]:
        """Return the facts a run was entered with."""
        row = self.db.execute("SELECT facts FROM runs WHERE run = ?", (run,)).fetchone()
        if row is None:
            raise StoreError(f"There is no run {run!r} in {str(self.path)!r}.")
        return Facts(self.path, run, row[0])

    def federation(self, config: RunConfig) -> dict[str, NDArray[Any]]:
        """Return a run's federation as it was entered: ``label_counts`` and what else is known."""
        found = self._federation(config.federation_key)
        if found is None:
            raise StoreError(f"There is no federation of run {config.key!r} in {str(self.path)!r}.")
        if "label_counts" not in found:
            raise damaged(self.path, f"the federation of run {config.key!r} has no label counts")
        return found

    def _federation(self, key: str) -> dict[str, NDArray[Any]] | None:
        query = "SELECT arrays FROM federations WHERE federation = ?"
        row = self.db.execute(query, (key,)).fetchone()
        try:
            return None if row is None else _unpack(row[0])
        except Exception as error:
            # A damaged archive shows in as many ways as there are bytes in it.
            raise damaged(self.path, f"federation {key!r}: {error}") from error

    def is_done(self, run: str) -> bool:
        """Tell whether a run is finished."""
        row = self.db.execute("SELECT done FROM runs WHERE run = ?", (run,)).fetchone()
        return row is not None and bool(row[0])

    def records(self, run: str) -> list[RoundRecord]:
        """Return all rounds of a run, in order."""
        query = f"SELECT {', '.join(_FIELDS)} FROM rounds WHERE run = ? ORDER BY round"
        try:
            return [_record(row) for row in self.db.execute(query, (run,)).fetchall()]
        except (TypeError, ValueError) as error:
            raise damaged(self.path, f"the rounds of run {run!r}: {error}") from error

    def final_scores(self, run: str, kind: Kind) -> list[FinalScore]:
        """Return how a run's final model does by client or by class; nothing if it is not known.

        Up to format 3 it was not kept.
        """
        query = (
            "SELECT part, kind, number, samples, score, loss FROM final_scores"
            " WHERE run = ? AND kind = ? ORDER BY part DESC, number"
        )
        rows = self.db.execute(query, (run, kind)).fetchall()
        return [FinalScore(*row) for row in rows]


def _row(record: RoundRecord) -> tuple[Any, ...]:
    values = dataclasses.asdict(record)
    return tuple(json.dumps(v) if isinstance(v, tuple) else v for v in values.values())


def _record(row: tuple[Any, ...]) -> RoundRecord:
    values = list(row)
    for place in _CLIENT_LISTS:
        values[place] = clients = tuple(json.loads(row[place])) if row[place] != "[]" else ()
        if not all(type(client) is int and client >= 0 for client in clients):
            raise ValueError(f"{clients} are no clients")
    return RoundRecord(*values)


def _pack(state: Mapping[str, NDArray[Any]]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **dict(state))
    return buffer.getvalue()


def _unpack(blob: bytes) -> dict[str, NDArray[Any]]:
    with np.load(io.BytesIO(blob), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
