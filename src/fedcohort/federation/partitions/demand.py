"""From a demand table to a partition.

A demand table says how many samples of each class each client gets, shape [C, N]. The algorithms
beside this file make such tables; here they are filled from shuffled class pools, and the requests
that all algorithms share are checked.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedcohort.errors import PartitionError
from fedcohort.federation.partitions.partition import IntArray, Partition, offsets_of


@dataclasses.dataclass(frozen=True)
class ClassPools:
    """The samples of each class.

    Parameters
    ----------
    values : int64 array, shape [N]
        The labels that occur.
    members : tuple of int64 arrays
        The sample numbers of each of them.
    """

    values: IntArray
    members: tuple[IntArray, ...]

    @classmethod
    def of(cls, labels: npt.ArrayLike) -> "ClassPools":
        """Group samples by label; classes that do not occur take no part."""
        array = label_array(labels)
        values = np.unique(array)
        by_class = np.argsort(array, kind="stable")
        return cls(values, tuple(np.split(by_class, np.searchsorted(array[by_class], values[1:]))))

    @property
    def supply(self) -> IntArray:
        """How many samples each class has, shape [N]."""
        return np.array([len(pool) for pool in self.members], dtype=np.int64)


def draw(demand: IntArray, pools: Sequence[IntArray], rng: np.random.Generator) -> Partition:
    """Draw the samples that `demand` [C, N] asks for from the pools of the N classes."""
    clients = np.arange(len(demand))
    drawn = []
    owners = []
    for column, pool in enumerate(pools):
        needed = int(demand[:, column].sum())
        passes = max(1, math.ceil(needed / len(pool)))
        drawn.append(np.concatenate([rng.permutation(pool) for _ in range(passes)])[:needed])
        owners.append(np.repeat(clients, demand[:, column]))
    samples = np.concatenate(drawn)
    # Shuffled inside each client too, so that a prefix of a client's samples is a fair sample.
    by_client = np.lexsort((rng.random(len(samples)), np.concatenate(owners)))
    return Partition(samples[by_client].astype(np.int64), offsets_of(demand.sum(axis=1)))


def label_array(labels: npt.ArrayLike) -> IntArray:
    """Return labels as int64, having checked that they are a row of integers."""
    array = np.asarray(labels)
    if array.ndim != 1 or len(array) == 0 or array.dtype.kind not in "iu":
        raise PartitionError(
            f"Labels must be a non-empty row of integers, not shape {array.shape} of {array.dtype}."
        )
    return array.astype(np.int64)


def check_clients(clients: int) -> int:
    """Return the number of clients, having checked that it is at least 1."""
    if clients < 1:
        raise PartitionError(f"A federation needs at least 1 client, not {clients}.")
    return int(clients)


def wanted_sizes(
    clients: int, samples_per_client: int | None, sizes: npt.ArrayLike | None, minimum: int
) -> IntArray | None:
    """Return the sizes that the caller asked for, shape [C], or None when it asked for none."""
    if samples_per_client is not None and sizes is not None:
        raise PartitionError("Give only one of samples_per_client and sizes.")
    if samples_per_client is not None:
        return checked_sizes(clients, np.full(clients, samples_per_client), minimum)
    return None if sizes is None else checked_sizes(clients, sizes, minimum)


def checked_sizes(clients: int, sizes: npt.ArrayLike, minimum: int) -> IntArray:
    """Return sizes as int64, shape [C], having checked that each is at least `minimum`."""
    array = np.asarray(sizes)
    if array.shape != (clients,) or array.dtype.kind not in "iu":
        raise PartitionError(f"sizes must be {clients} whole numbers, one a client.")
    if array.min() < minimum:
        raise PartitionError(f"Every client needs at least {minimum} samples, not {array.min()}.")
    return array.astype(np.int64)


def check_total(wanted: IntArray, total: int, reuse: bool) -> None:
    """Raise `PartitionError` when more samples are wanted than there are."""
    if not reuse and wanted.sum() > total:
        raise PartitionError(
            f"{len(wanted)} clients ask for {wanted.sum()} samples but there are {total}: "
            f"ask for at most {total // len(wanted)} a client, or allow reuse."
        )
