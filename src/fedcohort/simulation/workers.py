"""Several processes on one study: each claims groups for itself, the store is all they share."""

import dataclasses
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from pathlib import Path

import torch

from fedcohort.errors import FedcohortError, WorkerError
from fedcohort.federation import load_dataset
from fedcohort.simulation.driver import Worker
from fedcohort.simulation.engine import find_device
from fedcohort.simulation.ledger import Ledger
from fedcohort.simulation.logs import open_logs
from fedcohort.simulation.progress import Progress, progress_of
from fedcohort.simulation.store import Store

_SECONDS_BETWEEN_LOOKS = 0.5


@dataclasses.dataclass(frozen=True)
class _Orders:
    """What a worker is told."""

    folder: Path
    names: frozenset[str]
    datasets: tuple[str, ...]
    device: str
    workers: int
    deadline: float
    logs: tuple[str, ...]


def work_in_processes(
    store: Store,
    names: Collection[str],
    datasets: Sequence[str],
    device: str,
    workers: int,
    *,
    report: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    deadline: float = math.inf,
    logs: Sequence[str] = (),
) -> bool:
    """Work on groups with several processes until all are finished.

    Parameters
    ----------
    store : Store
        Where the groups are.
    names : collection of str
        Which of them.
    datasets : sequence of str
        What they train on.
    device : {"auto", "cpu", "cuda"}
        Where; several GPUs are shared out among the workers.
    workers : int
        How many processes.
    report, stop, deadline
        As in `Worker`.
    logs : sequence of str
        As in `open_logs`.

    Returns
    -------
    bool
        Whether all groups are finished.

    Raises
    ------
    WorkerError
        When a worker failed and its work is not done.
    """
    spawn = multiprocessing.get_context("spawn")
    stopped, failures = spawn.Event(), spawn.SimpleQueue()
    orders = _Orders(
        store.folder, frozenset(names), tuple(datasets), device, workers, deadline, tuple(logs)
    )
    ledger = Ledger(store)
    crew = [
        spawn.Process(target=_work, args=(orders, number, stopped, failures), daemon=True)
        for number in range(workers)
    ]
    for process in crew:
        process.start()
    try:
        while any(process.is_alive() for process in crew):
            groups = [group for group in ledger.groups() if group.name in names]
            busy = sum(bool(group.holder) for group in groups)
            report(progress_of(groups, f"{busy} workers", busy))
            if stop():
                stopped.set()
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    except BaseException:
        for process in crew:
            process.kill()
        raise
    finished = all(group.done for group in ledger.groups() if group.name in names)
    if not finished:
        _complain(crew, failures)
    return finished


def _complain(crew: Sequence[SpawnProcess], failures: "SimpleQueue[str]") -> None:
    """Raise what a worker failed of, if one did."""
    if not failures.empty():
        raise WorkerError(failures.get())
    for process in crew:
        if process.exitcode:
            raise WorkerError(
                f"A worker ended with exit code {process.exitcode}, and its group is free again:"
                " give the same command to go on."
            )


def _work(orders: _Orders, number: int, stopped: Event, failures: "SimpleQueue[str]") -> None:
    """Be one worker."""
    # Ctrl-C reaches every process of a terminal; the parent says what to do about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // orders.workers))
    try:
        device = find_device(orders.device)
        if device.type == "cuda":
            torch.cuda.set_device(number % torch.cuda.device_count())
        with Store.existing(orders.folder) as store, open_logs(orders.logs) as log:
            worker = Worker(
                Ledger(store),
                {name: load_dataset(name) for name in orders.datasets},
                device,
                stop=lambda: stopped.is_set() or not (parent and parent.is_alive()),
                deadline=orders.deadline,
                log=log,
            )
            worker.work(orders.names)
    except FedcohortError as error:
        failures.put(str(error))
        raise SystemExit(1) from None
