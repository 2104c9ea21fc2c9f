"""A store's contents, row by row, without what depends on the clock."""

import sqlite3

from fedcohort.simulation.store import WALL_CLOCK


def contents(folder):
    """Return all tables of a store: by name, the sorted rows of the columns that must repeat."""
    db = sqlite3.connect(folder / "results.sqlite")
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {}
    for table in tables:
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        kept = [column for column in columns if column not in WALL_CLOCK.get(table, ())]
        found[table] = sorted(
            db.execute(f"SELECT {', '.join(kept)} FROM {table}").fetchall(), key=repr
        )
    db.close()
    return found
