"""Threads that each compute alone, for work that is many small independent pieces.

PyTorch can split one operation over the cores, or the cores can work on different clients. The
latter has no barriers, and no sum whose order depends on the number of cores: a result is the same
to the last bit on one core and on a hundred. PyTorch releases Python's lock while it computes, so
threads are enough.

The same holds for the products of selectors: NumPy and SciPy leave them to a BLAS, whose sums
depend on the number of its threads.
"""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

_limit: int | None = None


def worker_count() -> int:
    """Return how many workers this process has: what `limit_workers` said, or one per core."""
    if _limit is not None:
        return _limit
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdigit() and int(named) > 0:
        return int(named)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def limit_workers(count: int) -> None:
    """Have at most so many workers in this process, which shares the machine with others."""
    global _limit
    _limit = max(1, count)


def in_workers(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return ``[function(item) for item in items]``, computed by the workers."""
    count = worker_count()
    if count == 1:
        with one_thread_per_operation():
            return [function(item) for item in items]
    return list(_pool(count, os.getpid()).map(function, items))


@contextlib.contextmanager
def one_thread_per_operation() -> Iterator[None]:
    """While active, no operation of this thread is split over several threads.

    Products of NumPy and SciPy are not either, where threadpoolctl is installed.
    """
    before = torch.get_num_threads()
    # Setting it has a cost of its own: PyTorch forgets its prepared convolutions.
    if before != 1:
        torch.set_num_threads(1)
    try:
        with _one_blas_thread():
            yield
    finally:
        if before != 1:
            torch.set_num_threads(before)


def _one_blas_thread() -> contextlib.AbstractContextManager[Any]:
    controller = _blas()
    return contextlib.nullcontext() if controller is None else controller.limit(limits=1)


@functools.cache
def _blas() -> Any:
    """Return what limits the threads of NumPy's and SciPy's BLAS, or None; found once, as it takes
    milliseconds.
    """
    # SciPy has a BLAS of its own, which is found only when it is loaded.
    import scipy.linalg  # noqa: F401

    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:  # on machines with nothing but NumPy, SciPy and PyTorch
        return None
    return ThreadpoolController().select(user_api="blas")


@functools.cache
def _pool(count: int, _process: int) -> ThreadPoolExecutor:
    # The process is part of the key: threads do not survive a fork.
    before = torch.get_num_threads()
    ready = threading.Barrier(count + 1)

    def prepare() -> None:
        # Asked first, because a thread's first question resets what was set before it.
        torch.get_num_threads()
        torch.set_num_threads(1)
        ready.wait()

    pool = ThreadPoolExecutor(count, thread_name_prefix="fedcohort", initializer=prepare)
    for _ in range(count):
        pool.submit(lambda: None)
    ready.wait()
    # A thread that starts later would inherit what was set last, so set again what was set before.
    torch.set_num_threads(before)
    return pool
