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

from fedcohort.errors import StoreError
from fedcohort.simulation.config import RunConfig

FILE_NAME = "results.sqlite"
_FORMAT = 1
_LARGE_FILE = 2**24

_SCHEMA = """
CREATE TABLE IF NOT EXISTS federations (federation TEXT PRIMARY KEY, arrays BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS runs (
    run TEXT PRIMARY KEY, config TEXT NOT NULL, facts TEXT NOT NULL, done INTEGER NOT NULL,
    federation TEXT NOT NULL REFERENCES federations
) STRICT;
CREATE TABLE IF NOT EXISTS rounds (
    run TEXT NOT NULL REFERENCES runs, round INTEGER NOT NULL,
    train_accuracy REAL, train_loss REAL, test_accuracy REAL, test_loss REAL, gemd REAL,
    cohort TEXT NOT NULL, left_out TEXT NOT NULL,
    bytes_down INTEGER NOT NULL, bytes_up INTEGER NOT NULL,
    elapsed REAL NOT NULL, seconds REAL NOT NULL, selection_seconds REAL NOT NULL,
    PRIMARY KEY (run, round)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS checkpoints (
    run TEXT PRIMARY KEY REFERENCES runs, round INTEGER NOT NULL, state BLOB NOT NULL
) STRICT;
"""


@dataclasses.dataclass(frozen=True)
class RoundRecord:
    """What happened in one round of one run; round 0 is the initial model.

    Attributes
    ----------
    train_accuracy, train_loss, test_accuracy, test_loss : float or None
        Of the global model after the round; None where it was not evaluated.
    gemd : float or None
        How far the cohort's label mixture is from everyone's; None for round 0.
    cohort, left_out : tuple of int
        Who was chosen, and whose update was not used (dropped out or not finite).
    bytes_down, bytes_up : int
        Sent to clients and by clients.
    elapsed : float
        Simulated time that the round took (see `fedcohort.simulation.system`).
    seconds, selection_seconds : float
        Wall-clock time of the round, divided by the runs in lockstep, and of its selection.
    """

    round: int
    train_accuracy: float | None = None
    train_loss: float | None = None
    test_accuracy: float | None = None
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

Checkpoint = tuple[int, dict[str, NDArray[Any]]]


class Store:
    """The runs of one output folder.

    Parameters
    ----------
    folder : path-like
        Created if missing; the file in it is ``results.sqlite``.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / FILE_NAME
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=60)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._open()
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

    def _open(self) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version not in (0, _FORMAT):
            raise StoreError(
                f"{str(self.path)!r} was written by another version of fedcohort (format {version},"
                f" this one reads {_FORMAT}): use that version or another folder."
            )
        with self._transaction():
            for statement in filter(str.strip, _SCHEMA.split(";")):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version={_FORMAT}")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # -- writing ---------------------------------------------------------------------------

    def begin(
        self, config: RunConfig, facts: Mapping[str, Any], federation: Mapping[str, NDArray[Any]]
    ) -> None:
        """Enter a run.

        Parameters
        ----------
        config : RunConfig
            What is run.
        facts : dict
            What else is worth knowing: model size, device.
        federation : dict of arrays
            Who holds what, shared by all runs of one `RunConfig.federation_key`:
            ``label_counts`` [C, N] and, if some selector needed them, ``profiles`` [C, Q].
        """
        known = self._federation(config.federation_key)
        with self._transaction():
            if known is None or len(known) < len(federation):
                self._db.execute(
                    "INSERT OR REPLACE INTO federations VALUES (?, ?)",
                    (config.federation_key, _pack(federation)),
                )
            self._db.execute(
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
        checkpoints: Mapping[str, Checkpoint],
        *,
        done: bool = False,
    ) -> None:
        """Write rounds and the checkpoints they lead up to in one transaction.

        Parameters
        ----------
        records : dict of RoundRecord lists
            New rounds by run.
        checkpoints : dict of (round, arrays)
            Where each run can go on from.
        done : bool
            Whether these runs are finished; their checkpoints are then dropped.
        """
        marks = ", ".join("?" for _ in range(len(_FIELDS) + 1))
        insert = f"INSERT OR REPLACE INTO rounds (run, {', '.join(_FIELDS)}) VALUES ({marks})"
        with self._transaction():
            for run, rows in records.items():
                self._db.executemany(insert, ((run, *_row(record)) for record in rows))
            for run, (round_, state) in checkpoints.items():
                self._db.execute(
                    "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)",
                    (run, round_, _pack(state)),
                )
            if done:
                for run in records:
                    self._db.execute("UPDATE runs SET done = 1 WHERE run = ?", (run,))
                    self._db.execute("DELETE FROM checkpoints WHERE run = ?", (run,))
        if done:
            self._shrink()

    def _shrink(self) -> None:
        """Give the room of dropped checkpoints back once it is most of a large file."""
        free, pages, size = (
            self._db.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("freelist_count", "page_count", "page_size")
        )
        if 2 * free > pages and free * size > _LARGE_FILE:
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # -- reading ---------------------------------------------------------------------------

    def configs(self) -> list[RunConfig]:
        """Return the configurations of all runs, in the order they were entered."""
        return [
            RunConfig.from_json(text)
            for (text,) in self._db.execute("SELECT config FROM runs ORDER BY rowid")
        ]

    def facts(self, run: str) -> dict[str, Any]:
        """Return the facts a run was entered with."""
        row = self._db.execute("SELECT facts FROM runs WHERE run = ?", (run,)).fetchone()
        if row is None:
            raise StoreError(f"There is no run {run!r} in {str(self.path)!r}.")
        return json.loads(row[0])  # type: ignore[no-any-return]

    def federation(self, config: RunConfig) -> dict[str, NDArray[Any]]:
        """Return a run's federation as it was entered: ``label_counts`` and maybe ``profiles``."""
        found = self._federation(config.federation_key)
        if found is None:
            raise StoreError(f"There is no federation of run {config.key!r} in {str(self.path)!r}.")
        return found

    def _federation(self, key: str) -> dict[str, NDArray[Any]] | None:
        query = "SELECT arrays FROM federations WHERE federation = ?"
        row = self._db.execute(query, (key,)).fetchone()
        return None if row is None else _unpack(row[0])

    def is_done(self, run: str) -> bool:
        """Tell whether a run is finished."""
        row = self._db.execute("SELECT done FROM runs WHERE run = ?", (run,)).fetchone()
        return row is not None and bool(row[0])

    def checkpoint(self, run: str) -> Checkpoint | None:
        """Return where a run can go on from, if it was interrupted."""
        query = "SELECT round, state FROM checkpoints WHERE run = ?"
        row = self._db.execute(query, (run,)).fetchone()
        return None if row is None else (row[0], _unpack(row[1]))

    def records(self, run: str) -> list[RoundRecord]:
        """Return all rounds of a run, in order."""
        query = f"SELECT {', '.join(_FIELDS)} FROM rounds WHERE run = ? ORDER BY round"
        return [_record(row) for row in self._db.execute(query, (run,))]


def _row(record: RoundRecord) -> tuple[Any, ...]:
    values = dataclasses.asdict(record)
    return tuple(json.dumps(v) if isinstance(v, tuple) else v for v in values.values())


def _record(row: tuple[Any, ...]) -> RoundRecord:
    values = dict(zip(_FIELDS, row, strict=True))
    for name in ("cohort", "left_out"):
        values[name] = tuple(json.loads(values[name]))
    return RoundRecord(**values)


def _pack(state: Mapping[str, NDArray[Any]]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **dict(state))
    return buffer.getvalue()


def _unpack(blob: bytes) -> dict[str, NDArray[Any]]:
    with np.load(io.BytesIO(blob), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
