"""Threads that each compute alone, for work that is many small independent pieces.

PyTorch can split one operation over the cores, or the cores can work on different clients. The
latter has no barriers; PyTorch releases Python's lock while it computes, so threads are enough.
"""

import contextlib
import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Workers:
    """Who computes.

    Attributes
    ----------
    count : int
        Workers that run beside each other.
    threads : int
        Threads that each of them gives to one operation.
    """

    count: int
    threads: int

    def __str__(self) -> str:
        return f"{self.count} x {self.threads}"

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return ``[function(item) for item in items]``, computed by the workers."""
        if self.count == 1:
            with _split_over(self.threads):
                return [function(item) for item in items]
        return list(_pool(self.count, self.threads, os.getpid()).map(function, items))


@contextlib.contextmanager
def _split_over(threads: int) -> Iterator[None]:
    """While active, operations of this thread are split over `threads` threads."""
    before = torch.get_num_threads()
    # Setting it has a cost of its own: PyTorch forgets its prepared convolutions.
    if before != threads:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if before != threads:
            torch.set_num_threads(before)


@functools.cache
def _pool(count: int, threads: int, _process: int) -> ThreadPoolExecutor:
    # The process is part of the key: threads do not survive a fork.
    before = torch.get_num_threads()
    ready = threading.Barrier(count + 1)

    def prepare() -> None:
        # Asked first, because a thread's first question resets what was set before it.
        torch.get_num_threads()
        torch.set_num_threads(threads)
        ready.wait()

    pool = ThreadPoolExecutor(count, thread_name_prefix="fedcohort", initializer=prepare)
    for _ in range(count):
        pool.submit(lambda: None)
    ready.wait()
    # A thread that starts later would inherit what was set last, so set again what was set before.
    torch.set_num_threads(before)
    return pool
