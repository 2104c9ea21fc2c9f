"""Groups in several processes: each claims groups for itself, the store is all they share."""

import dataclasses
import multiprocessing
import pickle
import signal
import time
from collections.abc import Sequence
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from pathlib import Path

import torch

from fedcohort.errors import (
    FedcohortError,
    InvalidInputError,
    WorkerError,
    show_warnings_as_lines,
)
from fedcohort.simulation.claims import Claims
from fedcohort.simulation.devices import find_device
from fedcohort.simulation.execution.here import here
from fedcohort.simulation.execution.work import Work
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.progress import progress_of
from fedcohort.simulation.store import Store
from fedcohort.training.workers import limit_workers, worker_count

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_TO_END = 10.0


@dataclasses.dataclass(frozen=True)
class _Orders:
    """What a process is told: a `Work` that can travel."""

    folder: Path
    names: frozenset[str]
    materials: Materials
    device: str
    deadline: float
    logs: tuple[str, ...]
    keep_models: bool
    workers: int


@dataclasses.dataclass(frozen=True)
class Processes:
    """Works on groups with several processes of this machine; an `Executor`.

    Attributes
    ----------
    count : int
        How many; several GPUs are shared out among them.
    """

    count: int

    def __call__(self, work: Work) -> bool:
        """Work on groups until all are finished.

        Raises
        ------
        WorkerError
            When a process failed and its work is not done.
        """
        spawn = multiprocessing.get_context("spawn")
        stopped, failures = spawn.Event(), spawn.SimpleQueue()
        orders = _orders(work, max(1, worker_count() // self.count))
        crew = [
            spawn.Process(target=_work, args=(orders, number, stopped, failures), daemon=True)
            for number in range(self.count)
        ]
        for process in crew:
            process.start()
        claims = Claims(work.store)
        try:
            while any(process.is_alive() for process in crew):
                groups = claims.groups(work.names)
                busy = sum(bool(group.holder) for group in groups)
                ending = stopped.is_set() or time.monotonic() > work.deadline
                # Not by who still lives: a worker that is stopped (SIGSTOP) never ends.
                if all(group.done for group in groups) or (ending and not busy):
                    break
                work.report(progress_of(groups, f"{busy} workers", busy))
                if work.stop():
                    stopped.set()
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        except BaseException:
            for process in crew:
                process.kill()
            raise
        finished = all(group.done for group in claims.groups(work.names))
        if not finished:
            _complain(crew, failures)
        for process in crew:
            process.join(_SECONDS_TO_END)
            process.kill()  # one that is stopped does not even end
            process.join()
        return finished


def _orders(work: Work, workers: int) -> _Orders:
    """Return what travels of the work, and refuse what cannot."""
    try:
        pickle.dumps(work.materials)
    except Exception as error:
        raise InvalidInputError(
            f"Objects of yours cannot be sent to other processes ({error}): define them in a module"
            " that Python can import, or use one process."
        ) from error
    return _Orders(
        work.store.folder,
        work.names,
        work.materials,
        work.device,
        work.deadline,
        work.logs,
        work.keep_models,
        workers,
    )


def _complain(crew: Sequence[SpawnProcess], failures: "SimpleQueue[str]") -> None:
    """Raise what a process failed of, if one did."""
    if not failures.empty():
        raise WorkerError(failures.get())
    for process in crew:
        if process.exitcode:
            raise WorkerError(
                f"A worker ended with exit code {process.exitcode}, and its group is free again:"
                " give the same command to resume."
            )


def _work(orders: _Orders, number: int, stopped: Event, failures: "SimpleQueue[str]") -> None:
    """Be one of the processes."""
    # Ctrl-C reaches every process of a terminal; the parent says what to do about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    show_warnings_as_lines()
    parent = multiprocessing.parent_process()
    limit_workers(orders.workers)
    try:
        if find_device(orders.device).type == "cuda":
            torch.cuda.set_device(number % torch.cuda.device_count())
        with Store.existing(orders.folder) as store:
            here(
                Work(
                    store,
                    orders.names,
                    orders.materials,
                    orders.device,
                    stop=lambda: stopped.is_set() or not (parent and parent.is_alive()),
                    deadline=orders.deadline,
                    logs=orders.logs,
                    keep_models=orders.keep_models,
                )
            )
    except FedcohortError as error:
        failures.put(str(error))
        raise SystemExit(1) from None
