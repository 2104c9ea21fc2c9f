"""How evenly the work falls on the clients, and how evenly they are served."""

import math

import numpy as np
import numpy.typing as npt

from fedcohort.errors import InvalidInputError


def participation_variation(counts: npt.ArrayLike) -> float:
    """Return the coefficient of variation of how often each client took part.

    Parameters
    ----------
    counts : array, shape [C]
        Rounds each client took part in.

    Returns
    -------
    float
        Standard deviation over mean: 0 when all take part equally often.

    Examples
    --------
    >>> participation_variation([4, 4, 4, 4]), participation_variation([8, 0, 8, 0])
    (0.0, 1.0)
    """
    checked = _participations(counts)
    return float(checked.std() / checked.mean())


def jain_index(counts: npt.ArrayLike) -> float:
    """Return Jain's fairness index (Σ n)² / (C Σ n²).

    Parameters
    ----------
    counts : array, shape [C]
        Rounds each client took part in.

    Returns
    -------
    float
        From 1/C (one client does everything) to 1 (all equally often).

    Examples
    --------
    >>> jain_index([4, 4, 4, 4]), jain_index([16, 0, 0, 0])
    (1.0, 0.25)
    """
    checked = _participations(counts)
    return float(checked.sum() ** 2 / (len(checked) * np.sum(checked**2)))


def worst_share(scores: npt.ArrayLike, share: float = 0.1) -> float | None:
    """Return the mean score of the clients that are served worst.

    Parameters
    ----------
    scores : array, shape [C]
        One score per client; those that are None or not a number are left out.
    share : float
        The share of the clients that counts, rounded up: at least one.

    Returns
    -------
    float or None
        None where no score is known.

    Examples
    --------
    >>> worst_share([0.9, 0.5, 0.8])
    0.5
    """
    known = np.asarray(scores, dtype=np.float64)
    known = np.sort(known[np.isfinite(known)])
    if not len(known):
        return None
    # The nearest number below 0.1 · 30 is not 3 in floating point.
    return float(known[: max(1, math.ceil(round(share * len(known), 9)))].mean())


def _participations(counts: npt.ArrayLike) -> npt.NDArray[np.float64]:
    array = np.asarray(counts, dtype=np.float64)
    if array.ndim != 1 or not np.all(np.isfinite(array)) or np.any(array < 0):
        raise InvalidInputError("Participation counts must be one number of at least 0 per client.")
    if array.sum() == 0:
        raise InvalidInputError("Nobody has taken part yet: there is no fairness to measure.")
    return array
