"""Sums over the columns of wide matrices, such as the updates of large models."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from fedcohort.selection.base import Floats

_WIDTH = 2**16


def sum_over_columns(part: Callable[[slice], Floats], columns: int) -> Floats:
    """Return the sum of what `part` makes of each slice of the columns.

    Slices are as wide whatever the number of threads, and added in their order: the sum is the same
    to the last bit on any number of processors.
    """
    slices = [slice(start, start + _WIDTH) for start in range(0, columns, _WIDTH)]
    if len(slices) == 1:
        return part(slices[0])
    with ThreadPoolExecutor(min(len(slices), os.cpu_count() or 1)) as threads:
        first, *others = threads.map(part, slices)
    for other in others:
        first += other
    return first
