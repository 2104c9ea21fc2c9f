"""What drives the engine: groups are claimed, trained, saved and gone on with."""

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch

from fedcohort.federation import Dataset, load_dataset
from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.content import study_with_content
from fedcohort.simulation.engine import device_for
from fedcohort.simulation.ledger import Claim, ClaimLostError, GroupState, Ledger
from fedcohort.simulation.logs import Log
from fedcohort.simulation.packing import packer
from fedcohort.simulation.progress import Progress, progress_of
from fedcohort.simulation.setting import federation_of, initial_model
from fedcohort.simulation.store import Store
from fedcohort.simulation.study import study_of_runs
from fedcohort.simulation.training import GroupTraining

SECONDS_BETWEEN_SAVES = 5.0
# Saving takes at most one part in so many of the time.
_SAVING_SHARE = 20
_SECONDS_BETWEEN_LOOKS = 1.0
# How much earlier than a deadline to be done, for what is not measured.
_SLACK = 1.0


def pause_after(saving: float) -> float:
    """Return how long to train until the next save: the larger a state, the more seldom."""
    return max(SECONDS_BETWEEN_SAVES, _SAVING_SHARE * saving)


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
    if datasets is None:
        datasets = load_datasets(configs)
    study = study_with_content(study_of_runs(configs), datasets)
    ledger = Ledger(store)
    ledger.enter(study, packer(datasets, where))
    worker = Worker(ledger, datasets, where, report=report, stop=stop)
    return worker.work(ledger.groups_of(study.configs))


@dataclasses.dataclass
class Worker:
    """One process that works on groups.

    Attributes
    ----------
    ledger : Ledger
        Where the groups are.
    datasets : dict of Dataset
        By name.
    device : torch.device
        Where to train.
    report : callable
        Hears the progress after every round.
    stop : callable
        Asked after every round; True saves everything and ends.
    deadline : float
        Of the monotonic clock: no round is begun that could not be saved before it.
    log : callable
        Hears the rounds of a run once they are saved.
    """

    ledger: Ledger
    datasets: Mapping[str, Dataset]
    device: torch.device
    report: Callable[[Progress], None] = lambda _: None
    stop: Callable[[], bool] = lambda: False
    deadline: float = math.inf
    log: Log = lambda *_: None

    def __post_init__(self) -> None:
        self._stopping = False
        self._preparing = self._saving = self._round = 0.0

    def work(self, names: Collection[str]) -> bool:
        """Work on these groups until all are finished, by this process or by others.

        Returns
        -------
        bool
            Whether they are.
        """
        todo = {g.name for g in self.ledger.groups() if g.name in names and not g.done}
        with self.ledger.heartbeat():
            while not self._must_stop(self._preparing + self._round):
                claim = self.ledger.claim(todo)
                if claim is None:
                    if not self._unfinished(todo):
                        return True
                    self._wait(todo)
                    continue
                try:
                    self._train(claim, todo)
                except ClaimLostError:
                    continue
                finally:
                    self.ledger.release(claim)
        return not self._unfinished(todo)

    def _unfinished(self, names: Collection[str]) -> list[GroupState]:
        return [group for group in self.ledger.groups() if group.name in names and not group.done]

    def _must_stop(self, ahead: float) -> bool:
        """Tell whether to end: on a wish, or because `ahead` seconds and a save are too long."""
        wished = self.stop()
        late = time.monotonic() + ahead + self._saving + _SLACK > self.deadline
        self._stopping = self._stopping or wished or late
        return self._stopping

    def _wait(self, names: Collection[str]) -> None:
        """Wait a little for other processes to finish their groups, or to die."""
        groups = [group for group in self.ledger.groups() if group.name in names]
        holders = sorted({group.holder for group in groups if group.holder})
        self.report(progress_of(groups, f"waiting for {', '.join(holders)}", len(holders)))
        time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _train(self, claim: Claim, names: Collection[str]) -> None:
        """Train one group, to its end or until it is time to stop."""
        since = began = time.monotonic()
        dataset = self.datasets[claim.configs[0].dataset]
        training = GroupTraining(claim.configs, claim.states, dataset, self.device)
        self.ledger.begin(claim, training.entries())
        self._preparing = time.monotonic() - began
        pause = SECONDS_BETWEEN_SAVES
        while True:
            chunk = training.advance(
                pause, heard=self._listener(claim, names, dataset.name), stop=self._stop_in_training
            )
            began = time.monotonic()
            self.ledger.save(claim, chunk.records, chunk.states, began - since)
            since = time.monotonic()
            self._saving = since - began
            pause = pause_after(self._saving)
            for config in claim.configs:
                self.log(config, chunk.records[config.key])
            if not chunk.states or self._stopping:
                return

    def _stop_in_training(self) -> bool:
        return self._must_stop(self._round)

    def _listener(self, claim: Claim, names: Collection[str], note: str) -> Callable[[int], None]:
        """Return what hears the rounds of a group between two saves."""
        groups = [group for group in self.ledger.groups() if group.name in names]
        workers = len({group.holder for group in groups if group.holder})
        place = next(i for i, group in enumerate(groups) if group.name == claim.group)
        last = time.monotonic()

        def heard(round_: int) -> None:
            nonlocal last
            now = time.monotonic()
            self._round, last = now - last, now
            self.ledger.reached(claim, round_)
            groups[place] = dataclasses.replace(groups[place], live=round_)
            self.report(progress_of(groups, note, workers))

        return heard
