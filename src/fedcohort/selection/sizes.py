"""How much of a claimed size counts: a size is a claim, and it must not buy a place.

Rule: a client's size counts up to `LARGEST` times the upper quartile of the others' sizes. Fewer
than a quarter of the clients cannot move that limit, whatever they claim, and an honest client is
cut only if it holds four times as much as three quarters of the others do.
"""

import numpy as np
from numpy.typing import ArrayLike

from fedcohort.selection.base import Floats

LARGEST = 4.0
# How much more a client may claim in training than when it joined.
GROWTH = 2.0

_QUARTILE = 0.75


def bounded_sizes(claimed: ArrayLike, largest: float | None = LARGEST) -> Floats:
    """Return how much of each claimed size counts.

    Parameters
    ----------
    claimed : array_like [C]
        Samples that clients say they hold.
    largest : float, optional
        The limit, in upper quartiles of the others' sizes; None lets every claim count.

    Returns
    -------
    float64 [C]

    Examples
    --------
    >>> bounded_sizes([10, 12, 11, 9, 1000])
    array([10., 12., 11.,  9., 44.])
    """
    sizes = np.asarray(claimed, np.float64)
    if largest is None or len(sizes) < 2:
        return sizes
    ordered, rank = np.sort(sizes), np.argsort(np.argsort(sizes, kind="stable"), kind="stable")
    # Without the client itself, what stands after it moves up by one place.
    place = int(_QUARTILE * (len(sizes) - 2))
    others = np.where(rank <= place, ordered[place + 1], ordered[place])
    counted: Floats = np.minimum(sizes, largest * others)
    return counted
