"""Who does what: the groups of a store's studies, how far each is, and who holds it.

A run is packed into a lockstep group once, when a study first names it, and stays there: groups
are a function of the study and not of what is left, so an interrupted group goes on to the bit.
A process claims a group before it works on it, and its heart beats while it lives; a claim whose
process is gone, or that another machine did not renew for a minute, is taken over. Every save
checks that the claim is still held, so that one who slept too long cannot write.
"""

import contextlib
import dataclasses
import hashlib
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from fedcohort.simulation import processes
from fedcohort.simulation.checkpoints import drop_checkpoints, read_checkpoint, write_checkpoint
from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.store import Checkpoint, RoundRecord, Store
from fedcohort.simulation.study import Study

_SECONDS_BETWEEN_BEATS = 5.0
_SECONDS_TO_LIVE = 60.0

Entry = tuple[RunConfig, Mapping[str, Any], Mapping[str, NDArray[Any]]]


class ClaimLostError(Exception):
    """Another process took this group over; nothing was written."""


@dataclasses.dataclass(frozen=True)
class Pack:
    """Runs that will train in lockstep, and how much work one round of them is.

    Attributes
    ----------
    configs : tuple of RunConfig
        In the group's order.
    cost : float
        In units that are comparable between groups.
    """

    configs: tuple[RunConfig, ...]
    cost: float


@dataclasses.dataclass(frozen=True)
class Entered:
    """What entering a study changed.

    Attributes
    ----------
    added, known, unnamed : int
        Runs that are new, that were there already, and that only an earlier version named.
    changed : bool
        Whether the study was there before with another text.
    """

    added: int
    known: int
    unnamed: int
    changed: bool


@dataclasses.dataclass(frozen=True)
class GroupState:
    """How far a group is.

    Attributes
    ----------
    name : str
        Its key in the store.
    runs, rounds : int
        How many runs train together, for how long.
    shape : str
        Groups of one shape train the same model on the same data with the same schedule.
    cost : float
        Work of one round.
    round, live : int
        Rounds that are saved, and those that are done.
    seconds : float
        Time the saved rounds took.
    holder : str
        Who works on it, as ``host:pid``; empty if nobody does.
    """

    name: str
    runs: int
    rounds: int
    shape: str
    cost: float
    round: int
    live: int
    seconds: float
    holder: str

    @property
    def done(self) -> bool:
        """Whether all rounds are saved."""
        return self.round >= self.rounds


@dataclasses.dataclass(frozen=True)
class PartState:
    """How far a part of a study is.

    Attributes
    ----------
    study, part : str
        Its names; both are empty for runs that no study names any more.
    target : float or None
        The training accuracy its reports count rounds to.
    runs, done, running : int
        All of them, those that are finished, and those that somebody works on.
    rounds, rounds_done : int
        Rounds of single runs: in all, and saved or done just now.
    groups : frozenset of str
        The groups its runs are in.
    """

    study: str
    part: str
    target: float | None
    runs: int
    done: int
    running: int
    rounds: int
    rounds_done: int
    groups: frozenset[str]


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
        Where they go on from, one a run; empty at the beginning.
    """

    group: str
    configs: tuple[RunConfig, ...]
    states: list[Checkpoint]


class Ledger:
    """The groups of one store, as one process sees them.

    Parameters
    ----------
    store : Store
        Where they are kept.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._db = store.db
        self._token = uuid.uuid4().hex
        self._live: dict[str, int] = {}

    # -- planning --------------------------------------------------------------------------

    def enter(self, study: Study, pack: Callable[[Sequence[RunConfig]], Sequence[Pack]]) -> Entered:
        """Enter a study: gather the runs that are not in the store yet into groups.

        Parameters
        ----------
        study : Study
            What is to be done. One of the same name and another text is replaced: its runs stay.
        pack : callable
            Gathers runs into groups.
        """
        named = {config.key for config in study.configs}
        with self._store.transaction():
            known = self._keys("SELECT run FROM members UNION SELECT run FROM runs WHERE done")
            earlier = self._keys("SELECT run FROM parts WHERE study = ?", study.name)
            before = self._db.execute("SELECT source FROM studies WHERE study = ?", (study.name,))
            source = before.fetchone()
            fresh = [config for config in study.configs if config.key not in known]
            if fresh:
                self._add(fresh, pack(fresh))
            if study.source:
                self._db.execute("DELETE FROM parts WHERE study = ?", (study.name,))
            self._db.execute(
                "INSERT OR REPLACE INTO studies VALUES (?, ?)", (study.name, study.source)
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?)",
                (
                    (study.name, part.name, place, config.key, part.target)
                    for place, part in enumerate(study.parts)
                    for config in part.configs
                ),
            )
        for name in self._keys("SELECT grp FROM groups WHERE round = rounds"):
            drop_checkpoints(self._store.folder, name)
        return Entered(
            added=len(fresh),
            known=len(named) - len(fresh),
            unnamed=len(earlier - named) if study.source else 0,
            changed=source is not None and source[0] != study.source,
        )

    def _add(self, configs: Sequence[RunConfig], packs: Sequence[Pack]) -> None:
        member, group = (
            self._db.execute(f"SELECT coalesce(max(place) + 1, 0) FROM {table}").fetchone()[0]
            for table in ("members", "groups")
        )
        places = {config: member + i for i, config in enumerate(configs)}
        lowest: dict[RunConfig, int] = {}
        for config in configs:
            setting = dataclasses.replace(config, seed=0)
            lowest[setting] = min(config.seed, lowest.get(setting, config.seed))
        for place, pack in enumerate(packs, start=group):
            keys = "".join(config.key for config in pack.configs)
            name = hashlib.sha256(keys.encode()).hexdigest()[:16]
            shared = pack.configs[0]
            self._db.execute(
                "INSERT INTO groups VALUES (?, ?, ?, ?, ?, ?, 0, 0)",
                (name, place, shared.rounds, len(pack.configs), shared.lockstep_key(), pack.cost),
            )
            for seat, config in enumerate(pack.configs):
                # Reports show the profiles of the first seed; those of all seeds would be most
                # of the file.
                profiled = config.seed == lowest[dataclasses.replace(config, seed=0)]
                self._db.execute(
                    "INSERT INTO members VALUES (?, ?, ?, ?, ?, ?)",
                    (config.key, places[config], config.to_json(), profiled, name, seat),
                )

    def _keys(self, query: str, *values: str) -> set[str]:
        return {key for (key,) in self._db.execute(query, values)}

    # -- looking ---------------------------------------------------------------------------

    def groups_of(self, configs: Iterable[RunConfig]) -> set[str]:
        """Return the names of the groups that these runs are in."""
        wanted = {config.key for config in configs}
        rows = self._db.execute("SELECT run, grp FROM members")
        return {name for run, name in rows if run in wanted}

    def groups(self) -> list[GroupState]:
        """Return all groups in the order they are taken."""
        query = (
            "SELECT grp, groups.runs, rounds, shape, cost, groups.round, seconds,"
            " claims.round, host, pid, started, beat"
            " FROM groups LEFT JOIN claims USING (grp) ORDER BY place"
        )
        found = []
        for name, runs, rounds, shape, cost, round_, seconds, at, *holder in self._db.execute(
            query
        ):
            held = at is not None and not _abandoned(*holder)
            live = max(round_, at, self._live.get(name, 0)) if held else round_
            who = f"{holder[0]}:{holder[1]}" if held else ""
            found.append(GroupState(name, runs, rounds, shape, cost, round_, live, seconds, who))
        return found

    def parts(self) -> list[PartState]:
        """Return the parts of all studies, in their order, and then runs that none names."""
        groups = {group.name: group for group in self.groups()}
        query = (
            "SELECT coalesce(parts.study, ''), coalesce(part, ''), target, grp, done, runs.config"
            " FROM (SELECT run FROM members UNION SELECT run FROM parts) AS every"
            " LEFT JOIN members USING (run) LEFT JOIN runs USING (run)"
            " LEFT JOIN parts USING (run) LEFT JOIN studies USING (study)"
            " ORDER BY studies.rowid IS NULL, studies.rowid, parts.place"
        )
        found: dict[tuple[str, str, float | None], list[GroupState]] = {}
        for study, part, target, name, done, config in self._db.execute(query):
            group = groups[name] if name else _ungrouped(config if done else None)
            found.setdefault((study, part, target), []).append(group)
        return [
            PartState(
                study=study,
                part=part,
                target=target,
                runs=len(runs),
                done=sum(group.done for group in runs),
                running=sum(bool(group.holder) and not group.done for group in runs),
                rounds=sum(group.rounds for group in runs),
                rounds_done=sum(group.live for group in runs),
                groups=frozenset(group.name for group in runs if group.name),
            )
            for (study, part, target), runs in found.items()
        ]

    # -- working ---------------------------------------------------------------------------

    def claim(self, names: Collection[str]) -> Claim | None:
        """Take the first unfinished group among `names` that nobody works on."""
        query = (
            "SELECT grp, groups.round, host, pid, started, beat"
            " FROM groups LEFT JOIN claims USING (grp)"
            " WHERE groups.round < rounds ORDER BY place"
        )
        with self._store.transaction():
            free = (
                (name, round_)
                for name, round_, *holder in self._db.execute(query).fetchall()
                if name in names and (holder[0] is None or _abandoned(*holder))
            )
            name, round_ = next(free, (None, 0))
            if name is None:
                return None
            pid = os.getpid()
            self._db.execute(
                "INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    name,
                    self._token,
                    processes.host(),
                    pid,
                    processes.started(pid),
                    time.time(),
                    round_,
                ),
            )
        members = self._db.execute(
            "SELECT config FROM members WHERE grp = ? ORDER BY seat", (name,)
        )
        configs = tuple(RunConfig.from_json(text) for (text,) in members.fetchall())
        drop_checkpoints(self._store.folder, name, keep=round_)
        found = read_checkpoint(self._store.folder, name, round_, len(configs)) if round_ else None
        claim = Claim(name, configs, found or [])
        if not found:
            self._begin_again(claim)
        self._live[name] = round_ if found else 0
        return claim

    def _begin_again(self, claim: Claim) -> None:
        """Forget rounds that cannot be gone on from: their checkpoint did not travel with them."""
        with self._held(claim):
            self._db.execute(
                "UPDATE groups SET round = 0, seconds = 0 WHERE grp = ?", (claim.group,)
            )
            self._db.execute(
                "DELETE FROM rounds WHERE run IN (SELECT run FROM members WHERE grp = ?)",
                (claim.group,),
            )

    @contextlib.contextmanager
    def _held(self, claim: Claim) -> Iterator[None]:
        """Write in a transaction that checks first that the group is still this process's."""
        with self._store.transaction():
            row = self._db.execute(
                "SELECT holder FROM claims WHERE grp = ?", (claim.group,)
            ).fetchone()
            if row is None or row[0] != self._token:
                raise ClaimLostError(claim.group)
            yield

    def begin(self, claim: Claim, entries: Iterable[Entry]) -> None:
        """Enter the runs of a group that begins: configuration, facts and federation."""
        if claim.states:
            return
        profiled = self._keys("SELECT run FROM members WHERE profiled AND grp = ?", claim.group)
        with self._held(claim):
            for config, facts, federation in entries:
                kept = {
                    name: values
                    for name, values in federation.items()
                    if name != "profiles" or config.key in profiled
                }
                self._store.begin(config, facts, kept)

    def reached(self, claim: Claim, round_: int) -> None:
        """Say how far a group is, between saves."""
        self._live[claim.group] = round_

    def save(
        self,
        claim: Claim,
        records: Mapping[str, Sequence[RoundRecord]],
        states: Sequence[Checkpoint],
        seconds: float,
    ) -> None:
        """Save rounds of a group and where it goes on from, all or nothing.

        Parameters
        ----------
        claim : Claim
            The group.
        records : dict of RoundRecord lists
            New rounds by run, the same ones of each.
        states : sequence of (round, arrays)
            Where each run stands; empty when the group is finished, which also ends the claim.
        seconds : float
            Time the rounds took.
        """
        folder = self._store.folder
        round_ = next(iter(records.values()))[-1].round
        if states:
            write_checkpoint(folder, claim.group, states)
        with self._held(claim):
            self._store.save(records, done=not states)
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
            sqlite3.connect(self._store.path, isolation_level=None, timeout=_SECONDS_TO_LIVE / 4)
        ) as db:
            while not ended.wait(_SECONDS_BETWEEN_BEATS):
                # A beat that cannot be written is not a reason to stop: saving will say why.
                with contextlib.suppress(sqlite3.Error):
                    for group, round_ in list(self._live.items()):
                        db.execute(
                            "UPDATE claims SET beat = ?, round = ? WHERE grp = ? AND holder = ?",
                            (time.time(), round_, group, self._token),
                        )


def _ungrouped(config: str | None) -> GroupState:
    """Return how far a run without a group is: done elsewhere and merged, or not begun here."""
    rounds = RunConfig.from_json(config).rounds if config else 0
    return GroupState(
        name="",
        runs=1,
        rounds=max(rounds, 1),
        shape="",
        cost=0.0,
        round=rounds,
        live=rounds,
        seconds=0.0,
        holder="",
    )


def _abandoned(host: str, pid: int, started: int, beat: float) -> bool:
    """Tell whether a claim's process is gone: surely on this machine, by its silence elsewhere."""
    if host == processes.host() and started:
        return not processes.lives(pid, started)
    # Clocks of machines differ: a beat from the future is as silent as an old one.
    return abs(time.time() - beat) > _SECONDS_TO_LIVE
