"""Whether one selector is faster than another over the same seeds."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedcohort.metrics.convergence import first_reached, weighted_sums
from fedcohort.randomness import generator

_RESAMPLES = 2000
# Up to here all 2^seeds exchanges are enumerated, which makes the p-value exact.
_MOST_SEEDS_ENUMERATED = 12

FloatArray = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The difference of two selectors in rounds to the target, over the seeds they share.

    Attributes
    ----------
    baseline : str
        The label of the selector that is compared with.
    seeds : int
        How many seeds both have.
    difference : int
        Rounds to the target of the mean curve, minus the baseline's; below 0 is faster.
    low, high : int
        The 95 % interval of the difference, by bootstrap over pairs.
    p_value : float
        Of the paired permutation test (two-sided).
    censored : bool
        Whether one of the two never reached the target and was counted as the round after the
        last one; the true difference is then larger.
    """

    baseline: str
    seeds: int
    difference: int
    low: int
    high: int
    p_value: float
    censored: bool


def compare(
    baseline: str, rounds: npt.ArrayLike, ours: npt.ArrayLike, theirs: npt.ArrayLike, target: float
) -> Comparison | None:
    """Compare two selectors over the same seeds.

    The statistic is the difference of the mean curves' rounds to the target. Its interval comes
    from resampling pairs; its p-value from exchanging the two curves of each pair, which changes
    nothing if the selectors are equally fast.

    Parameters
    ----------
    baseline : str
        What the second selector is called.
    rounds : int array, shape [T]
        The evaluated rounds that both have.
    ours, theirs : float array, shape [seeds, T]
        The score of each seed under both selectors, in the same order; NaN where there is none.
    target : float
        The score to reach.

    Returns
    -------
    Comparison or None
        None when neither reaches the target, or when there is only one pair.
    """
    evaluated = np.append(np.asarray(rounds), 0)
    a, b = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    seeds = len(a)
    if seeds < 2 or a.shape[1] == 0:
        return None
    evaluated[-1] = evaluated[-2] + 1

    def reached(means: FloatArray) -> npt.NDArray[np.int64]:
        return evaluated[first_reached(means, target)]

    own, other = (int(reached(x.mean(axis=0)[None])[0]) for x in (a, b))
    if own == other == evaluated[-1]:
        return None
    share = np.full(seeds, 1 / seeds)
    counts = generator(0, "report comparison").multinomial(seeds, share, size=_RESAMPLES) / seeds
    low, high = np.percentile(
        reached(weighted_sums(counts, a)) - reached(weighted_sums(counts, b)),
        [2.5, 97.5],
        method="inverted_cdf",
    )
    keep = _exchanges(seeds)
    null = reached((weighted_sums(keep, a) + weighted_sums(1 - keep, b)) / seeds) - reached(
        (weighted_sums(keep, b) + weighted_sums(1 - keep, a)) / seeds
    )
    return Comparison(
        baseline=baseline,
        seeds=seeds,
        difference=own - other,
        low=int(low),
        high=int(high),
        p_value=float(np.mean(np.abs(null) >= abs(own - other))),
        censored=bool(evaluated[-1] in (own, other)),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number (Holm 1979), in the order given."""
    order = np.argsort(p_values)
    steps = len(p_values) - np.arange(len(p_values))
    rising = np.maximum.accumulate(np.minimum(1.0, np.asarray(p_values)[order] * steps))
    adjusted = np.empty(len(p_values))
    adjusted[order] = rising
    return [float(p) for p in adjusted]


def _exchanges(seeds: int) -> FloatArray:
    """Return 1 where a pair stays and 0 where it is exchanged, shape [draws, seeds]."""
    if seeds <= _MOST_SEEDS_ENUMERATED:
        return np.array(list(itertools.product([1.0, 0.0], repeat=seeds)))
    drawn = generator(0, "report exchanges").integers(2, size=(2**_MOST_SEEDS_ENUMERATED, seeds))
    # The observed pairing is one of the equally likely ones: leaving it out could give p = 0.
    drawn[0] = 1
    return drawn.astype(np.float64)
