"""Groups on Ray: they train as actors on any machine of a cluster, and this process saves.

Only this process opens the store, so machines need not share a disk: states and rounds travel
through Ray. The numbers are those of any other executor. A group whose machine is lost resumes on
another one from its last save; machines that join are used.
"""

import collections
import contextlib
import dataclasses
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

from fedcohort.errors import FedcohortError, FedcohortWarning, MissingPackageError, WorkerError
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
# A group that is lost so often without a save in between takes its machines down itself.
_MOST_LOSSES = 5


class ClusterWarning(FedcohortWarning):
    """A machine of the cluster was lost, or there is none."""


class _Actor:
    """What trains in Ray's processes."""

    def __init__(self, claim: Claim, materials: Materials, device: str) -> None:
        self._given = claim, materials, device

    def entries(self) -> list[Entry]:
        # Not in the constructor: what goes wrong there looks like a lost machine.
        claim, materials, device = self._given
        self._training = GroupTraining(claim, materials, find_device(device))
        return self._training.entries()

    def advance(self, seconds: float) -> Chunk:
        return self._training.advance(seconds)


@dataclasses.dataclass(frozen=True)
class _Remote:
    """A group in training somewhere, and whether it was entered."""

    claim: Claim
    actor: Any
    entered: bool = False


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingPackageError("--engine ray", "ray", error) from error
    return ray


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

    def __post_init__(self) -> None:
        _ray()

    def __call__(self, work: Work) -> bool:
        """Work on groups until all are finished.

        Raises
        ------
        WorkerError
            When a group was lost again and again.
        """
        # Ray prints pages of its own about a lost machine, on standard output.
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", r"[\s\S]")
        ray = _ray()
        ray.init(log_to_driver=False, include_dashboard=False, logging_level="ERROR")
        try:
            resource = "GPU" if find_device(work.device).type == "cuda" else "CPU"
            remote = ray.remote(num_cpus=1, num_gpus=int(resource == "GPU"))(_Actor)
            materials = ray.put(work.materials)

            def start(claim: Claim) -> Any:
                return remote.remote(claim, materials, work.device)

            def places() -> int:
                there = int(ray.cluster_resources().get(resource, 0))
                return min(there, self.places or there)

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
        self._losses: collections.Counter[str] = collections.Counter()
        self._stopping = False

    def keep_busy(self, start: Callable[[Claim], Any], places: Callable[[], int]) -> bool:
        """Keep all places busy, save what comes back, and end when it is time to stop."""
        work, claims, busy = self._work, self._claims, self._busy
        try:
            while True:
                late = time.monotonic() + SECONDS_BETWEEN_SAVES > work.deadline
                self._stopping = self._stopping or work.stop() or late
                there = places()
                while not self._stopping and len(busy) < there:
                    if (claim := claims.claim(work.names)) is None:
                        break
                    actor = start(claim)
                    busy[actor.entries.remote()] = _Remote(claim, actor)
                groups = claims.groups(work.names)
                work.report(progress_of(groups, _note(len(busy), there), len(busy)))
                if all(group.done for group in groups):
                    return True
                if self._stopping:
                    self._give_up_unentered()
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
                self._let_go(task)

    def _give_up_unentered(self) -> None:
        """Let those go that have not done anything yet, and may still be waiting for a machine."""
        for future, task in list(self._busy.items()):
            if not task.entered:
                self._let_go(self._busy.pop(future))

    def _receive(self, future: Any) -> None:
        """Save what an actor returned, and let it continue or go."""
        task = self._busy[future]
        try:
            pause = self._save(task, self._ray.get(future))
        except ClaimLostError:
            pause = None
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, FedcohortError):
                raise error.cause from None
            raise
        except self._ray.exceptions.RayError as error:
            self._say_lost(task, error)
            pause = None
        # Not before: whatever goes wrong ends all that is in here.
        del self._busy[future]
        if pause is None:
            self._let_go(task)
        else:
            following = dataclasses.replace(task, entered=True)
            self._busy[task.actor.advance.remote(pause)] = following

    def _let_go(self, task: _Remote) -> None:
        self._claims.release(task.claim)
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(task.actor)

    def _say_lost(self, task: _Remote, error: Exception) -> None:
        """Say that a group's machine is gone; what it had saved is in the store."""
        group = task.claim.group
        self._losses[group] += 1
        if self._losses[group] == _MOST_LOSSES:
            raise WorkerError(
                f"Group {group} was lost {_MOST_LOSSES} times in a row ({_first_line(error)}): its"
                " runs may need more memory than the machines have; give the same command to resume"
                " elsewhere."
            )
        warnings.warn(
            f"The machine that group {group} trained on is lost ({_first_line(error)}): it resumes"
            " on another one from its last save.",
            ClusterWarning,
            stacklevel=2,
        )

    def _save(self, task: _Remote, result: list[Entry] | Chunk) -> float | None:
        """Save a result; return for how many seconds the group continues, if it does."""
        if not isinstance(result, Chunk):
            self._claims.begin(task.claim, result)
            return None if self._stopping else SECONDS_BETWEEN_SAVES
        began = time.monotonic()
        save_chunk(self._work, self._claims, task.claim, result, self._log)
        self._losses.pop(task.claim.group, None)
        self._claims.reached(task.claim, next(iter(result.records.values()))[-1].round)
        if self._stopping or not result.states:
            return None
        return pause_after(time.monotonic() - began)


def _note(busy: int, there: int) -> str:
    """Say what a cluster does, and once on standard error that there is none."""
    if there:
        return f"{busy} groups on Ray"
    warnings.warn(
        "Ray has no machine that can train: waiting for one; Ctrl-C ends, and what is saved stays.",
        ClusterWarning,
        stacklevel=2,
    )
    return "waiting for a machine of Ray"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__).rstrip(".:")
