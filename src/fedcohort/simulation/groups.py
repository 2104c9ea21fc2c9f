"""The lockstep groups of a store: how far each is, and who works on it."""

import dataclasses
import json
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from fedcohort.simulation import liveness
from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.scores import Target
from fedcohort.simulation.store import Store
from fedcohort.simulation.store_file import damaged

_NOBODY: Mapping[str, int] = MappingProxyType({})
# A claim that was not renewed for so long is given up: its process is stopped, or its machine away.
SECONDS_TO_LIVE = 60.0


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
        Work of one round, in units that are comparable between groups.
    round, live : int
        Rounds that are saved, and those that are done.
    seconds : float
        Time the saved rounds took, without what starting took.
    holder : str
        Who works on it, as ``host:pid``; empty if nobody does.
    """

    name: str
    runs: int
    rounds: int
    round: int
    live: int
    shape: str = ""
    cost: float = 0.0
    seconds: float = 0.0
    holder: str = ""

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
    target : Target or None
        What its reports count rounds to.
    runs, done, running : int
        All of them, those that are finished, and those that somebody works on.
    rounds, rounds_done : int
        Rounds of single runs: in all, and saved or done just now.
    groups : frozenset of str
        The groups its runs are in.
    """

    study: str
    part: str
    target: Target | None
    runs: int
    done: int
    running: int
    rounds: int
    rounds_done: int
    groups: frozenset[str]


def dataset_of(store: Store, group: GroupState) -> str:
    """Return what the runs of a group train on."""
    try:
        return str(json.loads(group.shape)["dataset"])
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(store.path, f"the shape of group {group.name!r}: {error}") from error


def groups_of(store: Store, configs: Iterable[RunConfig]) -> frozenset[str]:
    """Return the names of the unfinished groups that these runs are in."""
    wanted = {config.key for config in configs}
    rows = store.db.execute(
        "SELECT run, grp FROM members JOIN groups USING (grp) WHERE round < rounds"
    )
    return frozenset(name for run, name in rows if run in wanted)


def group_states(store: Store, live: Mapping[str, int] = _NOBODY) -> list[GroupState]:
    """Return all groups in the order they are taken.

    `live` has the rounds that this process has done of its own groups: more than the store knows.
    """
    query = (
        "SELECT grp, groups.runs, rounds, shape, cost, groups.round, seconds,"
        " claims.round, host, pid, started, beat"
        " FROM groups LEFT JOIN claims USING (grp) ORDER BY place"
    )
    found = []
    for name, runs, rounds, shape, cost, round_, seconds, at, *holder in store.db.execute(query):
        held = at is not None and not is_abandoned(*holder)
        done = max(round_, at, live.get(name, 0)) if held else round_
        who = f"{holder[0]}:{holder[1]}" if held else ""
        found.append(GroupState(name, runs, rounds, round_, done, shape, cost, seconds, who))
    return found


def part_states(store: Store) -> list[PartState]:
    """Return the parts of all studies, in their order, and then runs that none names."""
    groups = {group.name: group for group in group_states(store)}
    group_of: dict[str, str] = dict(store.db.execute("SELECT run, grp FROM members").fetchall())
    if missing := set(group_of.values()) - groups.keys():
        raise damaged(store.path, f"there is no group {min(missing)!r}, which a run is in")
    elsewhere = dict(
        store.db.execute(
            "SELECT run, config FROM runs WHERE done AND run NOT IN (SELECT run FROM members)"
        ).fetchall()
    )
    named = store.db.execute(
        "SELECT study, part, target, target_on, run FROM parts LEFT JOIN studies USING (study)"
        " ORDER BY studies.rowid IS NULL, studies.rowid, parts.place"
    ).fetchall()
    unnamed = sorted(group_of.keys() - {row[-1] for row in named})
    found: dict[tuple[str, str, Target | None], list[GroupState]] = {}
    for study, part, score, on, run in [*named, *(("", "", None, "", run) for run in unnamed)]:
        target = None if score is None else Target(score, on)
        name = group_of.get(run)
        group = groups[name] if name else _ungrouped(store, elsewhere.get(run))
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


def is_abandoned(host: str, pid: int, started: int, beat: float) -> bool:
    """Tell whether a claim's process is gone, by its silence or, on this machine, at once."""
    if host == liveness.host() and started and not liveness.lives(pid, started):
        return True
    # Clocks of machines differ: a beat from the future is as silent as an old one.
    return abs(time.time() - beat) > SECONDS_TO_LIVE


def _ungrouped(store: Store, config: str | None) -> GroupState:
    """Return how far a run without a group is: done elsewhere and merged, or not begun here."""
    rounds = store.read_config(config).rounds if config else 0
    return GroupState("", runs=1, rounds=max(rounds, 1), round=rounds, live=rounds)
