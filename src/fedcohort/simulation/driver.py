"""What drives the engine: runs gathered into lockstep groups, done, saved and gone on with."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from fedcohort.federation import Dataset, load_dataset
from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.engine import Lockstep, device_for
from fedcohort.simulation.setting import federation_of, initial_model
from fedcohort.simulation.store import Checkpoint, RoundRecord, Store

_SECONDS_BETWEEN_SAVES = 5.0


def lockstep_groups(configs: Iterable[RunConfig]) -> list[list[RunConfig]]:
    """Gather runs that can be trained as one program, in the order they are given."""
    groups: dict[str, list[RunConfig]] = {}
    for config in configs:
        groups.setdefault(config.lockstep_key(), []).append(config)
    return list(groups.values())


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a simulation is: run-rounds done and in all, and what is being trained on."""

    done: int
    total: int
    note: str = ""


def load_datasets(configs: Iterable[RunConfig]) -> dict[str, Dataset]:
    """Load what runs need, by name, and refuse federations that cannot be built from it."""
    datasets: dict[str, Dataset] = {}
    checked: set[str] = set()
    for config in configs:
        if config.dataset not in datasets:
            datasets[config.dataset] = load_dataset(config.dataset)
        shape = dataclasses.replace(config, selector="fedavg", seed=0, rounds=1)
        if shape.key not in checked:
            checked.add(shape.key)
            federation_of(config, datasets[config.dataset])
            initial_model(config, datasets[config.dataset])
    return datasets


def simulate(
    configs: Sequence[RunConfig],
    store: Store,
    *,
    datasets: Mapping[str, Dataset] | None = None,
    device: str = "auto",
    report: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Do all runs that the store does not hold yet, going on where they were left.

    Parameters
    ----------
    configs : sequence of RunConfig
        Runs to do.
    store : Store
        Where results go, and where interrupted runs go on from.
    datasets : dict of Dataset, optional
        What `load_datasets` returned; loaded here if not given.
    device : {"auto", "cpu", "cuda"}
        Where to train.
    report : callable
        Hears the progress after every round.
    stop : callable
        Asked after every round; True saves everything and ends.

    Returns
    -------
    bool
        Whether all runs are finished.
    """
    where = device_for(configs, device)
    pending = [config for config in dict.fromkeys(configs) if not store.is_done(config.key)]
    loaded = load_datasets(pending) if datasets is None else datasets
    total = sum(config.rounds for config in pending)
    done = 0
    for group in lockstep_groups(pending):
        dataset = loaded[group[0].dataset]
        for part, saved in _by_round(group, store):
            lockstep = Lockstep(part, dataset, where)
            if saved:
                lockstep.restore(saved)
            done += lockstep.round * len(part)
            for entry in zip(part, lockstep.facts(), lockstep.federations(), strict=True):
                store.begin(*entry)
            for round_ in _run_group(lockstep, store, stop):
                report(Progress(done + round_ * len(part), total, dataset.name))
            if lockstep.round < part[0].rounds:
                return False
            done += part[0].rounds * len(part)
    return True


def _run_group(lockstep: Lockstep, store: Store, stop: Callable[[], bool]) -> Iterator[int]:
    """Run a group to its end, saving now and then; yields the rounds done in this call."""
    keys = [config.key for config in lockstep.configs]
    fresh: dict[str, list[RoundRecord]] = {key: [] for key in keys}
    first, rounds = lockstep.round, lockstep.configs[0].rounds
    saved_at, pause = time.monotonic(), _SECONDS_BETWEEN_SAVES
    if lockstep.round == 0:
        for key, record in zip(keys, lockstep.start(), strict=True):
            fresh[key].append(record)
    while lockstep.round < rounds:
        for key, record in zip(keys, lockstep.advance(), strict=True):
            fresh[key].append(record)
        stopping = stop()
        if lockstep.round == rounds or stopping or time.monotonic() - saved_at > pause:
            began = time.monotonic()
            done = lockstep.round == rounds
            store.save(fresh, {} if done else lockstep.checkpoints(), done=done)
            fresh = {key: [] for key in keys}
            saved_at = time.monotonic()
            # Large states are saved less often, so that saving stays a small part of the work.
            pause = max(_SECONDS_BETWEEN_SAVES, 20 * (saved_at - began))
        yield lockstep.round - first
        if stopping:
            return


def _by_round(
    group: Sequence[RunConfig], store: Store
) -> Iterator[tuple[list[RunConfig], list[Checkpoint]]]:
    """Split a group by the round its runs stand at: lockstep means the same round."""
    found = {config: store.checkpoint(config.key) for config in group}
    rounds = {config: 0 if saved is None else saved[0] for config, saved in found.items()}
    for round_ in sorted(set(rounds.values()), reverse=True):
        part = [config for config in group if rounds[config] == round_]
        yield part, [saved for c in part if (saved := found[c]) is not None]
