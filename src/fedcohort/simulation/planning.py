"""From a study to lockstep groups in the store.

A run is packed into a group once, when a study first names it, and stays there: groups are a
function of the study and not of what is left.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from fedcohort.simulation.checkpoints import drop_checkpoints
from fedcohort.simulation.config import SETTINGS, RunConfig
from fedcohort.simulation.packing import Pack
from fedcohort.simulation.store import Store
from fedcohort.simulation.study import Part, Study

_ALL_BUT_SEED = [name for name in SETTINGS if name != "seed"]


@dataclasses.dataclass(frozen=True)
class Entered:
    """What entering a study changed.

    Attributes
    ----------
    added, known, unnamed : int
        Runs that are new, that were there already, and that only an earlier version named.
    done : int
        Of those that were there, how many are finished.
    changed : bool
        Whether its parts were there before with other runs.
    """

    added: int
    known: int
    unnamed: int
    done: int
    changed: bool


def enter_study(
    store: Store, study: Study, pack: Callable[[Sequence[RunConfig]], Sequence[Pack]]
) -> Entered:
    """Enter a study: gather the runs that are not in the store yet into groups by `pack`.

    A study of the same name and another text is replaced: its runs stay, and so do parts that have
    no runs here, as they were entered before.
    """
    db = store.db
    named = {config.key for config in study.configs}
    others = [(place, p.name) for place, p in enumerate(study.parts) if not p.configs]
    replaced = "FROM parts WHERE study = ? AND part NOT IN (SELECT value FROM json_each(?))"
    these = study.name, json.dumps([name for _, name in others])
    with store.transaction():
        known = _keys(store, "SELECT run FROM members UNION SELECT run FROM runs WHERE done")
        done = _keys(store, "SELECT run FROM runs WHERE done")
        earlier = _keys(store, f"SELECT run {replaced}", *these)
        fresh = [config for config in study.configs if config.key not in known]
        if fresh:
            _add_groups(store, fresh, pack(fresh))
        if study.source:
            db.execute(f"DELETE {replaced}", these)
            move = "UPDATE parts SET place = ? WHERE part = ? AND study = ?"
            db.executemany(move, ((*other, study.name) for other in others))
        db.execute("INSERT OR REPLACE INTO studies VALUES (?, ?)", (study.name, study.source))
        db.executemany(
            "INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?, ?)",
            (
                (study.name, part.name, place, config.key, *_goal(part))
                for place, part in enumerate(study.parts)
                for config in part.configs
            ),
        )
    for name in _keys(store, "SELECT grp FROM groups WHERE round = rounds"):
        drop_checkpoints(store.folder, name)
    return Entered(
        added=len(fresh),
        known=len(named) - len(fresh),
        unnamed=len(earlier - named) if study.source else 0,
        done=len(named & done),
        changed=bool(study.source and earlier and earlier != named),
    )


def _add_groups(store: Store, configs: Sequence[RunConfig], packs: Sequence[Pack]) -> None:
    db = store.db
    member, group = (
        db.execute(f"SELECT coalesce(max(place) + 1, 0) FROM {table}").fetchone()[0]
        for table in ("members", "groups")
    )
    places = {config: member + i for i, config in enumerate(configs)}
    # Reports show the profiles of the first seed; those of all seeds would be most of the file.
    first: dict[tuple[Any, ...], RunConfig] = {}
    for config in sorted(configs, key=lambda config: config.seed):
        first.setdefault(tuple(getattr(config, name) for name in _ALL_BUT_SEED), config)
    profiled = {config.key for config in first.values()}
    for place, pack in enumerate(packs, start=group):
        keys = "".join(config.key for config in pack.configs)
        name = hashlib.sha256(keys.encode()).hexdigest()[:16]
        shared = pack.configs[0]
        db.execute(
            "INSERT INTO groups VALUES (?, ?, ?, ?, ?, ?, 0, 0)",
            (name, place, shared.rounds, len(pack.configs), shared.lockstep_key(), pack.cost),
        )
        for seat, config in enumerate(pack.configs):
            own = config.key, places[config], config.to_json(), config.key in profiled
            db.execute("INSERT INTO members VALUES (?, ?, ?, ?, ?, ?)", (*own, name, seat))


def _goal(part: Part) -> tuple[float | None, str]:
    return (None, "train") if part.target is None else dataclasses.astuple(part.target)


def _keys(store: Store, query: str, *values: str) -> set[str]:
    return {key for (key,) in store.db.execute(query, values)}
