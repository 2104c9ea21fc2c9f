"""A study on Ray: groups train as actors on any machine of the cluster, this process saves.

Only this process opens the store, so machines need not share a disk: states and rounds travel
through Ray. The numbers are those of any other engine.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from fedcohort.errors import MissingPackageError
from fedcohort.federation import Dataset
from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.driver import SECONDS_BETWEEN_SAVES, pause_after
from fedcohort.simulation.engine import find_device
from fedcohort.simulation.ledger import Claim, ClaimLostError, Entry, Ledger
from fedcohort.simulation.logs import Log
from fedcohort.simulation.progress import Progress, progress_of
from fedcohort.simulation.store import Checkpoint
from fedcohort.simulation.training import Chunk, GroupTraining

_SECONDS_BETWEEN_LOOKS = 1.0


class _Actor:
    """What trains in Ray's processes."""

    def __init__(
        self,
        configs: Sequence[RunConfig],
        states: Sequence[Checkpoint],
        dataset: Dataset,
        device: str,
    ) -> None:
        self._training = GroupTraining(configs, states, dataset, find_device(device))

    def entries(self) -> list[Entry]:
        return self._training.entries()

    def advance(self, seconds: float) -> Chunk:
        return self._training.advance(seconds)


@dataclasses.dataclass(frozen=True)
class _Remote:
    """A group in training somewhere, and since when its present rounds are."""

    claim: Claim
    actor: Any
    since: float


def work_on_ray(
    ledger: Ledger,
    names: Collection[str],
    datasets: Mapping[str, Dataset],
    device: str,
    workers: int | None,
    *,
    report: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    deadline: float = math.inf,
    log: Log = lambda *_: None,
) -> bool:
    """Work on groups with Ray until all are finished.

    A cluster that ``RAY_ADDRESS`` names is used; otherwise Ray is started here, and ended.

    Parameters
    ----------
    ledger : Ledger
        Where the groups are.
    names : collection of str
        Which of them.
    datasets : dict of Dataset
        By name; sent to the machines that need them.
    device : {"auto", "cpu", "cuda"}
        Where to train.
    workers : int, optional
        How many groups at a time; as many as Ray has GPUs, or else cores, if not given.
    report, stop, deadline, log
        As in `Worker`.

    Returns
    -------
    bool
        Whether all groups are finished.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingPackageError("--engine ray", "ray", error) from error
    ray.init(log_to_driver=False, include_dashboard=False, logging_level="ERROR")
    try:
        resource = "GPU" if find_device(device).type == "cuda" else "CPU"
        places = workers or int(ray.cluster_resources().get(resource, 1))
        remote = ray.remote(num_cpus=1, num_gpus=int(resource == "GPU"))(_Actor)
        sent = {name: ray.put(dataset) for name, dataset in datasets.items()}

        def start(claim: Claim) -> Any:
            dataset = sent[claim.configs[0].dataset]
            return remote.remote(claim.configs, claim.states, dataset, device)

        with ledger.heartbeat():
            return _work(ray, ledger, names, start, places, report, stop, deadline, log)
    finally:
        ray.shutdown()


def _work(
    ray: Any,
    ledger: Ledger,
    names: Collection[str],
    start: Callable[[Claim], Any],
    places: int,
    report: Callable[[Progress], None],
    stop: Callable[[], bool],
    deadline: float,
    log: Log,
) -> bool:
    """Keep all places busy; save what comes back; let go when it is time to stop."""
    busy: dict[Any, _Remote] = {}
    stopping = False
    try:
        while True:
            stopping = stopping or stop() or time.monotonic() + SECONDS_BETWEEN_SAVES > deadline
            while not stopping and len(busy) < places and (claim := ledger.claim(names)):
                actor = start(claim)
                busy[actor.entries.remote()] = _Remote(claim, actor, time.monotonic())
            groups = [group for group in ledger.groups() if group.name in names]
            report(progress_of(groups, f"{len(busy)} groups on Ray", len(busy)))
            if all(group.done for group in groups):
                return True
            if stopping and not busy:
                return False
            if not busy:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                continue
            ready, _ = ray.wait(list(busy), timeout=_SECONDS_BETWEEN_LOOKS)
            for future in ready:
                task = busy.pop(future)
                try:
                    following = _save(ledger, task, ray.get(future), log, stopping=stopping)
                except ClaimLostError:
                    following = None
                if following is None:
                    ledger.release(task.claim)
                    ray.kill(task.actor)
                else:
                    pause, since = following
                    busy[task.actor.advance.remote(pause)] = dataclasses.replace(task, since=since)
    finally:
        for task in busy.values():
            ledger.release(task.claim)


def _save(
    ledger: Ledger, task: _Remote, result: list[Entry] | Chunk, log: Log, *, stopping: bool
) -> tuple[float, float] | None:
    """Save what an actor returned; return for how long it goes on and since when, if it does."""
    if not isinstance(result, Chunk):
        ledger.begin(task.claim, result)
        return None if stopping else (SECONDS_BETWEEN_SAVES, task.since)
    began = time.monotonic()
    ledger.save(task.claim, result.records, result.states, began - task.since)
    for config in task.claim.configs:
        log(config, result.records[config.key])
    ledger.reached(task.claim, next(iter(result.records.values()))[-1].round)
    if stopping or not result.states:
        return None
    now = time.monotonic()
    return pause_after(now - began), now
