"""How soon a run is good enough, rounds to a target accuracy, and whether it stays so."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from fedcohort.errors import InvalidInputError, InvalidParameterError


@dataclasses.dataclass(frozen=True)
class RoundsInterval:
    """A confidence interval of the rounds to a target.

    Parameters
    ----------
    low, high : int or None
        The ends; None stands for "not within the rounds that were run".

    Examples
    --------
    >>> print(RoundsInterval(64, 66))
    RoundsInterval(low=64, high=66)
    """

    low: int | None
    high: int | None


def rounds_to_target(rounds: npt.ArrayLike, accuracy: npt.ArrayLike, target: float) -> int | None:
    """Return the first evaluated round whose accuracy is at or above the target.

    Parameters
    ----------
    rounds : int array, shape [T]
        The evaluated rounds, in ascending order.
    accuracy : float array, shape [T] or [seeds, T]
        The accuracy after each of them; with several seeds, the mean curve counts. NaN stands for
        no accuracy, as of a run that diverged, and a mean that contains it reaches no target.
    target : float
        The accuracy to reach.

    Returns
    -------
    int or None
        None when no evaluated round reaches the target.

    Examples
    --------
    >>> rounds_to_target([10, 20, 30], [0.5, 0.8, 0.9], 0.8)
    20
    """
    evaluated, curves = _curves(rounds, accuracy)
    first = int(first_reached(curves.mean(axis=0)[None], target)[0])
    return int(evaluated[first]) if first < len(evaluated) else None


def drop_after_peak(accuracy: npt.ArrayLike) -> float:
    """Return by how much the last accuracy is below the highest: 0 for a run that only got better.

    Parameters
    ----------
    accuracy : float array, shape [T] or [seeds, T]
        The accuracy after each evaluated round, all of them known; with several seeds, the mean
        curve counts.

    Examples
    --------
    >>> drop_after_peak([0.5, 0.75, 0.625])
    0.125
    """
    curve = np.atleast_2d(np.asarray(accuracy, dtype=np.float64)).mean(axis=0)
    return float(curve.max() - curve[-1])


def bootstrap_interval(
    rounds: npt.ArrayLike,
    accuracy: npt.ArrayLike,
    target: float,
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
    resamples: int = 2000,
) -> RoundsInterval:
    """Return a percentile bootstrap interval of the mean curve's rounds to the target.

    Seeds are drawn with replacement, their curves averaged, and the rounds to target of each
    average taken. A resample that never reaches the target counts as later than every round.

    Parameters
    ----------
    rounds : int array, shape [T]
        The evaluated rounds, in ascending order.
    accuracy : float array, shape [seeds, T]
        The accuracy of every seed; NaN as in `rounds_to_target`.
    target : float
        The accuracy to reach.
    rng : numpy.random.Generator
        Where the resamples come from.
    confidence : float, default 0.95
        The share of resamples inside the interval, above 0 and below 1.
    resamples : int, default 2000
        How many resamples.

    Examples
    --------
    >>> curves = np.array([[0.5, 0.8, 0.9], [0.6, 0.9, 0.95]])
    >>> bootstrap_interval([10, 20, 30], curves, 0.8, rng=np.random.default_rng(0))
    RoundsInterval(low=20, high=20)
    """
    if not 0 < confidence < 1:
        raise InvalidParameterError(f"confidence must be above 0 and below 1, not {confidence}.")
    if resamples < 1:
        raise InvalidParameterError(f"resamples must be at least 1, not {resamples}.")
    evaluated, curves = _curves(rounds, accuracy)
    seeds = len(curves)
    # The counts of every seed instead of copies of its curve: one matrix product does them all.
    counts = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples)
    reached = np.sort(first_reached(weighted_sums(counts, curves) / seeds, target))
    tail = (1 - confidence) / 2
    ends = []
    for quantile in (tail, 1 - tail):
        position = int(np.clip(np.ceil(quantile * resamples) - 1, 0, resamples - 1))
        first = int(reached[position])
        ends.append(int(evaluated[first]) if first < len(evaluated) else None)
    return RoundsInterval(*ends)


def _curves(
    rounds: npt.ArrayLike, accuracy: npt.ArrayLike
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    evaluated = np.asarray(rounds, dtype=np.int64)
    curves = np.atleast_2d(np.asarray(accuracy, dtype=np.float64))
    if evaluated.ndim != 1 or curves.ndim != 2 or curves.shape[1] != len(evaluated):
        raise InvalidInputError(
            f"Accuracy of shape {curves.shape} does not belong to {evaluated.shape} rounds."
        )
    if len(curves) == 0:
        raise InvalidInputError("There is no seed to take the mean of.")
    if np.any(np.diff(evaluated) <= 0):
        raise InvalidInputError("The evaluated rounds must rise.")
    return evaluated, curves


def weighted_sums(
    weights: npt.NDArray[Any], curves: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return weights [rows, S] times curves [S, T]: NaN only where one that weighs something is."""
    unknown = np.isnan(curves)
    sums: npt.NDArray[np.float64] = weights @ np.where(unknown, 0.0, curves)
    sums[weights @ unknown.astype(np.float64) > 0] = np.nan
    return sums


def first_reached(curves: npt.NDArray[np.float64], target: float) -> npt.NDArray[np.int64]:
    """Return the first column at or above the target, shape [rows]; the width where none is."""
    # Averages of accuracies that equal the target can come out one rounding error below it.
    reached = curves >= target - 1e-12
    sentinel = np.ones((len(curves), 1), dtype=bool)
    first: npt.NDArray[np.int64] = np.hstack([reached, sentinel]).argmax(axis=1)
    return first
