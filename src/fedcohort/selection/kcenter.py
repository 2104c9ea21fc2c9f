"""Farthest-first traversal of the profiles: greedy k-center.

T. F. Gonzalez: Clustering to Minimize the Maximum Intercluster Distance. Theoretical Computer
Science 38, 1985.

Rule: the first client is drawn uniformly; then, k − 1 times, the client whose profile is farthest
from the nearest profile already chosen, ties at random. No client is then farther from the cohort
than twice what the best k clients could reach. Weights n_c / Σ n_c.
"""

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from fedcohort.selection.base import Cohort, Floats, Need
from fedcohort.selection.guard import ProfileSelector
from fedcohort.selection.registry import register
from fedcohort.selection.roster import Rows

# Differences are formed for this many numbers at a time, so that they stay in the cache.
_SLICE = 2**18


@register("kcenter")
@dataclasses.dataclass(kw_only=True, eq=False)
class KCenter(ProfileSelector):
    """Take the client farthest from those already taken.

    Parameters
    ----------
    guard : {"off", "profiles", "updates"}
        Who is left out: nobody; clients whose profiles look forged; or also those whose training
        contradicts their profile.
    outputs : int, optional
        Length of the output layer's bias, for the guard ``updates``: that of the simulated model,
        or 10.

    Examples
    --------
    >>> profiles = np.random.default_rng(1).normal(size=(100, 16))
    >>> len(KCenter().fit(profiles).select(10, rng=np.random.default_rng(0)))
    10
    """

    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        everyone = self._roster[Need.PROFILE.value]
        profiles = everyone if len(rows) == len(everyone) else everyone[rows]
        return self._cohort(rows[farthest_first(profiles, k, rng=rng)])


def farthest_first(profiles: NDArray[np.floating], k: int, *, rng: np.random.Generator) -> Rows:
    """Return k different points, each the farthest from those before it, in O(n · k · Q).

    Parameters
    ----------
    profiles : float [n, Q]
        The points.
    k : int
        How many to take, at most n.
    rng : numpy.random.Generator
        Draws the first one and breaks ties.

    Returns
    -------
    intp [k]
    """
    # Looked at in a random order, the first of several maxima is a random one of them.
    order = rng.permutation(len(profiles))
    chosen = np.empty(k, np.intp)
    nearest = np.full(len(profiles), np.inf)
    unit = _safe_unit(profiles)
    for place in range(k):
        best = chosen[place] = order[np.argmax(nearest[order])]
        nearest = np.minimum(nearest, _squared_distances(profiles, profiles[best], unit))
        nearest[chosen[: place + 1]] = -1.0
    return chosen


def _safe_unit(profiles: NDArray[np.floating]) -> float:
    """Return what to multiply by so that squares of differences neither overflow nor vanish."""
    extent = max(float(profiles.max()), -float(profiles.min()))
    if 1e-12 < extent < 1e12:
        return 1.0
    return math.ldexp(1.0, -min(max(math.frexp(extent)[1], -1000), 1000))


def _squared_distances(
    profiles: NDArray[np.floating], centre: NDArray[np.floating], unit: float
) -> Floats:
    distances = np.empty(len(profiles))
    step = max(1, _SLICE // max(1, profiles.shape[1]))
    for start in range(0, len(profiles), step):
        some = profiles[start : start + step]
        difference = some - centre if unit == 1 else some * unit - centre * unit
        distances[start : start + step] = np.einsum("nq,nq->n", difference, difference)
    return distances
