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
from typing import Any

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
from fedcohort.simulation.progress import progress_of
from fedcohort.simulation.store import Store
from fedcohort.training.workers import limit_workers, worker_count

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_TO_END = 10.0
# What processes are told of a `Work`; its store they open themselves.
_TRAVELS = ("names", "materials", "device", "deadline", "logs", "keep_models")


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
        threads = max(1, worker_count() // self.count)
        given = work.store.folder, _orders(work), threads, stopped, failures
        crew = [
            spawn.Process(target=_work, args=(number, *given), daemon=True)
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


def _orders(work: Work) -> dict[str, Any]:
    """Return what travels of the work, and refuse what cannot."""
    try:
        pickle.dumps(work.materials)
    except Exception as error:
        raise InvalidInputError(
            f"Objects of yours cannot be sent to other processes ({error}): define them in a module"
            " that Python can import, or use one process."
        ) from error
    return {name: getattr(work, name) for name in _TRAVELS}


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


def _work(
    number: int,
    folder: Path,
    orders: dict[str, Any],
    threads: int,
    stopped: Event,
    failures: "SimpleQueue[str]",
) -> None:
    """Be one of the processes."""
    # Ctrl-C reaches every process of a terminal; the parent says what to do about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    show_warnings_as_lines()
    parent = multiprocessing.parent_process()
    limit_workers(threads)

    def stop() -> bool:
        return stopped.is_set() or not (parent and parent.is_alive())

    try:
        if find_device(orders["device"]).type == "cuda":
            torch.cuda.set_device(number % torch.cuda.device_count())
        with Store.existing(folder) as store:
            here(Work(store, stop=stop, **orders))
    except FedcohortError as error:
        failures.put(str(error))
        raise SystemExit(1) from None
