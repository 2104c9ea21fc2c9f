"""The file of a store: made whole, checked before it is used, and read with an eye on damage."""

import contextlib
import os
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedcohort.errors import DamagedStoreError, StoreError
from fedcohort.files import sync_folder

# Up to this size every page is looked at on opening, in less than a second; of a larger file, only
# what is read.
_CHECKED_BYTES = 256 * 2**20
_OTHER_CAUSES = (sqlite3.OperationalError, sqlite3.IntegrityError, sqlite3.ProgrammingError)


def damaged(path: Path, why: object) -> DamagedStoreError:
    """Return the error of a file that is not what fedcohort wrote."""
    said = " ".join(str(why).split())
    return DamagedStoreError(
        f"The results in {str(path)!r} cannot be used, since the file is damaged ({said}): nothing"
        " was changed; restore it from a copy, or take another folder."
    )


def create_store(path: Path, schema: str, version: int) -> None:
    """Make an empty store, whole; one that somebody else makes at the same time is left alone."""
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and not path.exists():
        raise damaged(path, f"it is gone, though its {log.name!r} is there")
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as db:
            db.executescript(f"BEGIN; {schema}; PRAGMA user_version={version}; COMMIT")
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            if not path.exists():
                os.rename(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def is_archived(path: Path) -> bool:
    """Tell whether a store lies where nobody can write, and so can only be read."""
    return not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


def open_store(path: Path) -> "Connection":
    """Open the file of a store: to be written, unless it is archived."""
    if is_archived(path):
        # Nor does SQLite write beside it.
        uri = f"{path.absolute().as_uri()}?immutable=1"
        db = sqlite3.connect(uri, uri=True, isolation_level=None, factory=Connection)
    else:
        db = sqlite3.connect(path, isolation_level=None, timeout=60, factory=Connection)
    db.path = path
    return db


def check_store(path: Path, schema: str, version: int) -> None:
    """Refuse a file that is not a whole store of this format or an earlier one; it is not changed.

    `schema` has the statements that make the tables of the present format, `version`.
    """
    size = path.stat().st_size
    if size == 0:
        raise damaged(path, "it is empty")
    try:
        # Read-only: even to close a file can mean to write to it.
        uri = f"{path.absolute().as_uri()}?{'immutable=1' if is_archived(path) else 'mode=ro'}"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=60)) as db:
            (found,) = db.execute("PRAGMA user_version").fetchone()
            if found > version:
                raise StoreError(
                    f"{str(path)!r} was written by another version of fedcohort (format {found},"
                    f" this one reads {version}): use that version or another folder."
                )
            problem = None
            if size <= _CHECKED_BYTES:
                (problem,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if problem not in (None, "ok"):
                raise damaged(path, problem)
            log = path.with_name(f"{path.name}-wal")
            if is_archived(path) and (found < version or log.exists()):
                raise StoreError(
                    f"{str(path)!r} must be brought up to date and cannot be written to: copy its"
                    " folder to a place where it can."
                )
            missing = _columns_of(schema) - set(_columns(db)) if found == version else set()
            if missing or not found:
                what = ".".join(min(missing, default=("what a store has",)))
                raise damaged(path, f"it lacks {what}")
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if isinstance(error, sqlite3.OperationalError):
            raise  # locked, or not to be opened: no damage
        raise damaged(path, error) from error


def _columns_of(schema: str) -> set[tuple[str, str]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(schema)
        return set(_columns(db))


def _columns(db: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """Yield the names of all tables' columns, with the table's."""
    tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in tables:
        for row in db.execute("SELECT name FROM pragma_table_info(?)", (table,)):
            yield table, row[0]


class Connection(sqlite3.Connection):
    """A connection that says of a damaged page that the store is damaged."""

    path: Path

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        """Execute a statement."""
        with self.noticing():
            return self.cursor(Cursor).execute(*arguments)

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        """Execute a statement for each row of values."""
        with self.noticing():
            return self.cursor(Cursor).executemany(*arguments)

    @contextlib.contextmanager
    def noticing(self) -> Iterator[None]:
        """Turn what SQLite says about damage into the store's error."""
        try:
            yield
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            # A text that is no UTF-8 counts as operational, like a full disk.
            if isinstance(error, _OTHER_CAUSES) and "decode" not in str(error):
                raise
            raise damaged(self.path, error) from error


class Cursor(sqlite3.Cursor):
    """A cursor that says of a damaged page that the store is damaged."""

    connection: Connection

    def __next__(self) -> Any:
        with self.connection.noticing():
            return super().__next__()

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        with self.connection.noticing():
            return super().fetchone()

    def fetchall(self) -> list[Any]:
        """Return all rows that are left."""
        with self.connection.noticing():
            return super().fetchall()
