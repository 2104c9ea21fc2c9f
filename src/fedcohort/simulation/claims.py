"""Who works on which group, and what may be saved of it.

A process claims a group before it works on it, and its heart beats while it lives; a claim whose
process is gone, or that was not renewed for a minute because its process is stopped or its machine
out of reach, is taken over. Every save checks that the claim is still held, so that one who slept
too long cannot write.
"""

import contextlib
import dataclasses
import json
import os
import sqlite3
import threading
import time
import uuid
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from fedcohort.errors import FedcohortWarning, StoreError
from fedcohort.simulation import liveness
from fedcohort.simulation.checkpoints import drop_checkpoints, read_checkpoint, write_checkpoint
from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.groups import SECONDS_TO_LIVE, GroupState, group_states, is_abandoned
from fedcohort.simulation.scores import FinalScore
from fedcohort.simulation.store import RoundRecord, RunState, Store

_SECONDS_BETWEEN_BEATS = 5.0

Entry = tuple[RunConfig, Mapping[str, Any], Mapping[str, NDArray[Any]]]
"""What the store keeps about a run besides its rounds: configuration, facts, federation."""


# What the last bits of a run depend on, besides its configuration.
_MADE_BY = ("trainer", "device", "torch", "numpy", "fedcohort")
_THEN = ", then "


class ClaimLostError(Exception):
    """Another process took this group over; nothing was written."""


class ResumeWarning(FedcohortWarning):
    """A group does not resume where, how or by whom it was left."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """A group that this process works on.

    Attributes
    ----------
    group : str
        Its name.
    configs : tuple of RunConfig
        Its runs, in their order.
    states : list of (round, arrays)
        Where they resume from, one per run; empty at the beginning.
    """

    group: str
    configs: tuple[RunConfig, ...]
    states: list[RunState]


class Claims:
    """The groups that one process holds in a store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._db = store.db
        self._token = uuid.uuid4().hex
        self._live: dict[str, int] = {}

    def groups(self, names: Collection[str]) -> list[GroupState]:
        """Return how far these groups are, as this process knows it."""
        return [group for group in group_states(self.store, self._live) if group.name in names]

    def claim(self, names: Collection[str]) -> Claim | None:
        """Take the first unfinished group among `names` that nobody works on."""
        query = (
            "SELECT grp, groups.round, host, pid, started, beat"
            " FROM groups LEFT JOIN claims USING (grp)"
            " WHERE groups.round < rounds ORDER BY place"
        )
        with self.store.transaction():
            free = (
                (name, round_)
                for name, round_, *holder in self._db.execute(query).fetchall()
                if name in names and (holder[0] is None or is_abandoned(*holder))
            )
            name, round_ = next(free, (None, 0))
            if name is None:
                return None
            pid = os.getpid()
            mine = self._token, liveness.host(), pid, liveness.started(pid), time.time(), round_
            self._db.execute(
                "INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?, ?)", (name, *mine)
            )
        # From now on its heart beats: a large checkpoint takes longer to read than a claim lives.
        self._live[name] = round_
        members = self._db.execute(
            "SELECT config FROM members WHERE grp = ? ORDER BY seat", (name,)
        )
        configs = tuple(self.store.read_config(text) for (text,) in members.fetchall())
        drop_checkpoints(self.store.folder, name, keep=round_)
        found = read_checkpoint(self.store.folder, name, round_, len(configs)) if round_ else None
        claim = Claim(name, configs, found or [])
        if round_ and not found:
            try:
                self._begin_again(claim, round_)
            except ClaimLostError:
                self.release(claim)
                return None
        return claim

    def _begin_again(self, claim: Claim, round_: int) -> None:
        """Forget rounds that cannot be resumed: their checkpoint is damaged or did not travel.

        Those of finished runs, which came from another folder, stay.
        """
        _warn(
            f"Group {claim.group} begins again, since its checkpoint of round {round_} in"
            f" {str(self.store.folder)!r} is missing or damaged"
        )
        with self._held(claim):
            self._db.execute(
                "UPDATE groups SET round = 0, seconds = 0 WHERE grp = ?", (claim.group,)
            )
            self._db.execute(
                "DELETE FROM rounds WHERE run IN (SELECT run FROM members WHERE grp = ?)"
                " AND run NOT IN (SELECT run FROM runs WHERE done)",
                (claim.group,),
            )
        self._live[claim.group] = 0

    @contextlib.contextmanager
    def _held(self, claim: Claim) -> Iterator[None]:
        """Write in a transaction that checks first that the group is still this process's."""
        with self.store.transaction():
            self._check(claim)
            yield

    def _check(self, claim: Claim) -> None:
        query = "SELECT holder FROM claims WHERE grp = ?"
        row = self._db.execute(query, (claim.group,)).fetchone()
        if row is None or row[0] != self._token:
            _warn(
                f"Group {claim.group} is left to the process that took it over, since this one gave"
                f" no sign of life for {SECONDS_TO_LIVE:g} seconds"
            )
            raise ClaimLostError(claim.group)

    def begin(self, claim: Claim, entries: Iterable[Entry]) -> None:
        """Enter the runs of a group that begins: configuration, facts and federation.

        Of one that resumes, say and enter what it is made with now, if that is something else.
        """
        if claim.states:
            for config, facts, _ in entries:
                self._compare(claim, config, facts)
            return
        query = "SELECT run FROM members WHERE profiled AND grp = ?"
        profiled = {key for (key,) in self._db.execute(query, (claim.group,))}
        with self._held(claim):
            for config, facts, federation in entries:
                kept = {
                    name: values
                    for name, values in federation.items()
                    if name != "profiles" or config.key in profiled
                }
                self.store.begin(config, facts, kept)

    def _compare(self, claim: Claim, config: RunConfig, now: Mapping[str, Any]) -> None:
        """Add to a run's facts what it is made with from now on, if that is something else."""
        facts = self.store.facts(config.key)
        changed = {
            name: f"{facts[name]}{_THEN}{now[name]}"
            for name in _MADE_BY
            if name in facts and str(facts[name]).rpartition(_THEN)[2] != now[name]
        }
        if not changed:
            return
        what = "; ".join(f"{name}: {values}" for name, values in changed.items())
        _warn(
            f"Group {claim.group} resumes with other means than it was begun with ({what}): its"
            " rounds so far stay, and the last bits of later ones may differ"
        )
        with self._held(claim):
            self._db.execute(
                "UPDATE runs SET facts = ? WHERE run = ?",
                (json.dumps(facts | changed, sort_keys=True), config.key),
            )

    def reached(self, claim: Claim, round_: int) -> None:
        """Say how far a group is, between saves."""
        self._live[claim.group] = round_

    def save(
        self,
        claim: Claim,
        records: Mapping[str, Sequence[RoundRecord]],
        states: Sequence[RunState],
        seconds: float,
        scores: Mapping[str, Sequence[FinalScore]] | None = None,
    ) -> None:
        """Save rounds of a group and where it resumes from, all or nothing.

        `records` are new rounds by run, the same ones of each, which took `seconds`. Without
        `states` the group is finished, which also ends the claim;
        `scores` say how the final models of finished runs do.
        """
        folder = self.store.folder
        round_ = next(iter(records.values()))[-1].round
        if states:
            self._check(claim)
            try:
                write_checkpoint(folder, claim.group, states)
            except StoreError:
                # Who takes a group over clears away what others were about to write.
                self._check(claim)
                raise
        with self._held(claim):
            self.store.save(records, scores, done=not states)
            self._db.execute(
                "UPDATE groups SET round = ?, seconds = seconds + ? WHERE grp = ?",
                (round_, seconds, claim.group),
            )
            if not states:
                self._db.execute("DELETE FROM claims WHERE grp = ?", (claim.group,))
        drop_checkpoints(folder, claim.group, keep=round_ if states else None)

    def release(self, claim: Claim) -> None:
        """Let others take a group; no-op if it is not held any more."""
        self._live.pop(claim.group, None)
        with contextlib.suppress(sqlite3.Error):
            self._db.execute(
                "DELETE FROM claims WHERE grp = ? AND holder = ?", (claim.group, self._token)
            )

    @contextlib.contextmanager
    def heartbeat(self) -> Iterator[None]:
        """Renew the claims of this process while it works."""
        ended = threading.Event()
        thread = threading.Thread(target=self._beat, args=(ended,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _beat(self, ended: threading.Event) -> None:
        with contextlib.closing(
            sqlite3.connect(self.store.path, isolation_level=None, timeout=SECONDS_TO_LIVE / 4)
        ) as db:
            while not ended.wait(_SECONDS_BETWEEN_BEATS):
                # A beat that cannot be written is not a reason to stop: saving will say why.
                with contextlib.suppress(sqlite3.Error):
                    for group, round_ in list(self._live.items()):
                        db.execute(
                            "UPDATE claims SET beat = ?, round = ? WHERE grp = ? AND holder = ?",
                            (time.time(), round_, group, self._token),
                        )


def _warn(sentence: str) -> None:
    warnings.warn(f"{sentence}.", ResumeWarning, stacklevel=2)
