"""Unequal client sizes."""

import math

import numpy as np
import numpy.typing as npt

from fedcohort.errors import InvalidParameterError, PartitionError
from fedcohort.federation.partitions.demand import check_clients
from fedcohort.federation.partitions.partition import IntArray

FloatArray = npt.NDArray[np.float64]


def lognormal_sizes(
    clients: int, total: int, sigma: float, rng: np.random.Generator, minimum: int = 1
) -> IntArray:
    """Divide `total` samples over clients whose sizes are log-normal.

    Parameters
    ----------
    clients : int
        The number of clients C.
    total : int
        What the sizes sum to.
    sigma : float
        Standard deviation of the logarithm of a size; 0 gives equal sizes (± 1).
    rng : numpy.random.Generator
        Where the sizes come from.
    minimum : int, default 1
        The least size; it is set aside for everyone first, and the rest is divided.

    Returns
    -------
    int64 array, shape [C]

    Examples
    --------
    >>> int(lognormal_sizes(5, 1000, 1.0, np.random.default_rng(0)).sum())
    1000
    """
    clients = check_clients(clients)
    if not (math.isfinite(sigma) and sigma >= 0):
        raise InvalidParameterError(f"The size spread must be a number of at least 0, not {sigma}.")
    if total < clients * minimum:
        raise PartitionError(
            f"{total} samples are too few to give {clients} clients at least {minimum} each."
        )
    weights = normalised_exp(sigma * rng.standard_normal(clients))
    return minimum + apportion(total - clients * minimum, weights)


def apportion(total: int, shares: FloatArray) -> IntArray:
    """Divide `total` by `shares` into whole numbers: floors, then the largest remainders."""
    exact = total * shares
    counts = np.floor(exact).astype(np.int64)
    remainder = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:remainder]] += 1
    return counts


def normalised_exp(logs: FloatArray) -> FloatArray:
    """Return exp(logs) divided by its sum, without overflow."""
    weights = np.exp(logs - logs.max())
    shares: FloatArray = weights / weights.sum()
    return shares
