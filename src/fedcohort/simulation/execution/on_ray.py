"""Groups on Ray: they train as actors on any machine of a cluster, and this process saves.

Only this process opens the store, so machines need not share a disk: states and rounds travel
through Ray. The numbers are those of any other executor.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from fedcohort.errors import MissingPackageError
from fedcohort.simulation.claims import Claim, ClaimLostError, Claims, Entry
from fedcohort.simulation.devices import find_device
from fedcohort.simulation.execution.work import Work, save_chunk
from fedcohort.simulation.group_training import (
    SECONDS_BETWEEN_SAVES,
    Chunk,
    GroupTraining,
    pause_after,
)
from fedcohort.simulation.logs import Log, open_logs
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.progress import progress_of

_SECONDS_BETWEEN_LOOKS = 1.0


class _Actor:
    """What trains in Ray's processes."""

    def __init__(self, claim: Claim, materials: Materials, device: str) -> None:
        self._training = GroupTraining(claim, materials, find_device(device))

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


@dataclasses.dataclass(frozen=True)
class OnRay:
    """Works on groups with Ray; an `Executor`.

    A cluster that ``RAY_ADDRESS`` names is used; otherwise Ray is started here, and ended.

    Attributes
    ----------
    places : int, optional
        How many groups at a time; as many as Ray has GPUs, or else cores, if not given.
    """

    places: int | None = None

    def __call__(self, work: Work) -> bool:
        """Work on groups until all are finished."""
        try:
            import ray
        except ImportError as error:
            raise MissingPackageError("--engine ray", "ray", error) from error
        ray.init(log_to_driver=False, include_dashboard=False, logging_level="ERROR")
        try:
            resource = "GPU" if find_device(work.device).type == "cuda" else "CPU"
            places = self.places or int(ray.cluster_resources().get(resource, 1))
            remote = ray.remote(num_cpus=1, num_gpus=int(resource == "GPU"))(_Actor)
            materials = ray.put(work.materials)

            def start(claim: Claim) -> Any:
                return remote.remote(claim, materials, work.device)

            claims = Claims(work.store)
            with claims.heartbeat(), open_logs(work.logs) as log:
                return _Cluster(ray, work, claims, log).keep_busy(start, places)
        finally:
            ray.shutdown()


class _Cluster:
    """The groups that train on Ray just now."""

    def __init__(self, ray: Any, work: Work, claims: Claims, log: Log) -> None:
        self._ray, self._work, self._claims, self._log = ray, work, claims, log
        self._busy: dict[Any, _Remote] = {}
        self._stopping = False

    def keep_busy(self, start: Callable[[Claim], Any], places: int) -> bool:
        """Keep all places busy, save what comes back, and end when it is time to stop."""
        work, claims, busy = self._work, self._claims, self._busy
        try:
            while True:
                late = time.monotonic() + SECONDS_BETWEEN_SAVES > work.deadline
                self._stopping = self._stopping or work.stop() or late
                while not self._stopping and len(busy) < places:
                    if (claim := claims.claim(work.names)) is None:
                        break
                    actor = start(claim)
                    busy[actor.entries.remote()] = _Remote(claim, actor, time.monotonic())
                groups = claims.groups(work.names)
                work.report(progress_of(groups, f"{len(busy)} groups on Ray", len(busy)))
                if all(group.done for group in groups):
                    return True
                if self._stopping and not busy:
                    return False
                if not busy:
                    time.sleep(_SECONDS_BETWEEN_LOOKS)
                    continue
                ready, _ = self._ray.wait(list(busy), timeout=_SECONDS_BETWEEN_LOOKS)
                for future in ready:
                    self._receive(future)
        finally:
            for task in busy.values():
                claims.release(task.claim)

    def _receive(self, future: Any) -> None:
        """Save what an actor returned, and let it continue or go."""
        task = self._busy.pop(future)
        try:
            pause = self._save(task, self._ray.get(future))
        except ClaimLostError:
            pause = None
        if pause is None:
            self._claims.release(task.claim)
            self._ray.kill(task.actor)
        else:
            following = dataclasses.replace(task, since=time.monotonic())
            self._busy[task.actor.advance.remote(pause)] = following

    def _save(self, task: _Remote, result: list[Entry] | Chunk) -> float | None:
        """Save a result; return for how many seconds the group continues, if it does."""
        if not isinstance(result, Chunk):
            self._claims.begin(task.claim, result)
            return None if self._stopping else SECONDS_BETWEEN_SAVES
        began = time.monotonic()
        save_chunk(self._work, self._claims, task.claim, result, began - task.since, self._log)
        self._claims.reached(task.claim, next(iter(result.records.values()))[-1].round)
        if self._stopping or not result.states:
            return None
        return pause_after(time.monotonic() - began)
