"""Finished runs of one store into another: parts of a study that other machines did."""

import dataclasses
from pathlib import Path

from fedcohort.errors import StoreError
from fedcohort.simulation.store import FILE_NAME, Store


@dataclasses.dataclass(frozen=True)
class Merged:
    """How many finished runs came, and how many were there already."""

    added: int
    known: int


def merge(store: Store, folder: str | Path) -> Merged:
    """Take the finished runs of another folder over, in one transaction; it keeps what it has.

    Groups that are finished there are finished here; of a group that was packed differently here,
    the runs come and the group is done when all of its runs are.
    """
    if (Path(folder) / FILE_NAME).resolve() == store.path.resolve():
        raise StoreError(f"{str(folder)!r} cannot be merged into itself.")
    with Store.existing(folder):
        pass  # refuses what is not a store, and brings one of an older format up to date
    db = store.db
    db.execute("ATTACH ? AS other", (str(Path(folder) / FILE_NAME),))
    try:
        with store.transaction():
            (here,) = db.execute("SELECT count(*) FROM main.runs WHERE done").fetchone()
            (there,) = db.execute("SELECT count(*) FROM other.runs WHERE done").fetchone()
            # By name: a store of an older format has its columns in another order.
            columns = [row[1] for row in db.execute("PRAGMA main.table_info(rounds)")]
            for statement in _MERGE.format(rounds=", ".join(columns)).split(";"):
                db.execute(statement)
            (now,) = db.execute("SELECT count(*) FROM main.runs WHERE done").fetchone()
    finally:
        db.execute("DETACH other")
    return Merged(added=now - here, known=there - (now - here))


_MERGE = """
CREATE TEMP TABLE coming AS
    SELECT run FROM other.runs
    WHERE done AND run NOT IN (SELECT run FROM main.runs WHERE done);
INSERT INTO main.federations SELECT * FROM other.federations
    WHERE federation IN (SELECT federation FROM other.runs JOIN coming USING (run))
    ON CONFLICT DO UPDATE SET arrays = excluded.arrays
    WHERE length(excluded.arrays) > length(arrays);
DELETE FROM main.rounds WHERE run IN coming;
INSERT INTO main.rounds ({rounds}) SELECT {rounds} FROM other.rounds WHERE run IN coming;
DELETE FROM main.final_scores WHERE run IN coming;
INSERT INTO main.final_scores SELECT * FROM other.final_scores WHERE run IN coming;
INSERT OR REPLACE INTO main.runs SELECT * FROM other.runs WHERE run IN coming;
CREATE TEMP TABLE whole AS
    SELECT grp FROM other.groups WHERE round = rounds AND grp NOT IN (
        SELECT grp FROM other.members WHERE run IN (SELECT run FROM main.members)
    );
INSERT INTO main.groups
    SELECT grp, place + (SELECT coalesce(max(place) + 1, 0) FROM main.groups),
        rounds, runs, shape, cost, round, seconds
    FROM other.groups WHERE grp IN whole;
INSERT INTO main.members
    SELECT run, place + (SELECT coalesce(max(place) + 1, 0) FROM main.members),
        config, profiled, grp, seat
    FROM other.members WHERE grp IN whole;
UPDATE main.groups SET seconds = (SELECT seconds FROM other.groups WHERE grp = main.groups.grp)
    WHERE round < rounds AND grp IN (SELECT grp FROM other.groups WHERE round = rounds);
UPDATE main.groups SET round = rounds WHERE round < rounds AND NOT EXISTS (
    SELECT 1 FROM main.members JOIN main.runs USING (run)
    WHERE main.members.grp = main.groups.grp AND NOT done
) AND runs = (
    SELECT count(*) FROM main.members JOIN main.runs USING (run)
    WHERE main.members.grp = main.groups.grp
);
INSERT OR IGNORE INTO main.studies SELECT * FROM other.studies;
INSERT OR IGNORE INTO main.parts SELECT * FROM other.parts;
DROP TABLE temp.coming;
DROP TABLE temp.whole
"""
