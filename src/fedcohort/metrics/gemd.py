"""GEMD: how far a cohort's label mixture is from everyone's.

The group earth mover's distance of a cohort Y is Σ_j |P_Y(j) − P_g(j)|, where P_Y is the label
distribution that the cohort trains on, Σ_c w_c P_c with its aggregation weights w, and P_g that of
all clients. It is 0 when they agree and at most 2. With weights n_c / Σ n_c, P_Y is the
distribution of the cohort's joint data.

References
----------
J. Ma, X. Sun, W. Xia, X. Wang, X. Chen, H. Zhu: Client Selection Based on Label Quantity
Information for Federated Learning. PIMRC 2021; used to judge cohorts in the FL-DP³S paper.
"""

import numpy as np
import numpy.typing as npt

from fedcohort.errors import InvalidInputError, NoClientsAvailableError, UnknownClientError

FloatArray = npt.NDArray[np.float64]

# Larger counts are no counts, and their sums would overflow.
_MOST_SAMPLES = 1e300


def gemd(
    label_counts: npt.ArrayLike, ids: npt.ArrayLike, weights: npt.ArrayLike | None = None
) -> float:
    """Return the GEMD of one cohort.

    Parameters
    ----------
    label_counts : array, shape [C, N]
        Every client's samples by class.
    ids : int array, shape [K]
        The cohort; a client that occurs twice counts twice.
    weights : array, shape [K], optional
        Aggregation weights, of any sum above 0: the mixture is then Σ_c w_c P_c. Without them
        clients weigh as much as they hold, n_c / Σ n_c.

    Returns
    -------
    float
        Between 0 and 2.

    Raises
    ------
    NoClientsAvailableError
        When the cohort is empty.
    InvalidInputError
        When the population or the cohort holds no sample, or shapes do not fit.

    Examples
    --------
    >>> gemd([[10, 0], [0, 10], [5, 5]], [0, 1])
    0.0
    >>> gemd([[10, 0], [0, 10], [5, 5]], [0, 2])
    0.5
    """
    cohort = np.asarray(ids)
    if cohort.ndim != 1:
        raise InvalidInputError(f"A cohort is a row of client ids, not shape {cohort.shape}.")
    rows = None if weights is None else np.asarray(weights)[None]
    return float(gemd_of_cohorts(label_counts, cohort[None], rows)[0])


def gemd_of_cohorts(
    label_counts: npt.ArrayLike, cohorts: npt.ArrayLike, weights: npt.ArrayLike | None = None
) -> FloatArray:
    """Return the GEMD of many cohorts of one size.

    Parameters
    ----------
    label_counts : array, shape [C, N]
        Every client's samples by class.
    cohorts : int array, shape [T, K]
        One cohort per row.
    weights : array, shape [T, K], optional
        Aggregation weights, as in `gemd`.

    Returns
    -------
    float64 array, shape [T]

    Examples
    --------
    >>> gemd_of_cohorts([[10, 0], [0, 10], [5, 5]], [[0, 1], [0, 2]])
    array([0. , 0.5])
    """
    counts = _counts(label_counts)
    ids = _ids(cohorts, len(counts))
    if weights is None:
        mixture = counts[ids].sum(axis=1)
    else:
        shares = np.asarray(weights, dtype=np.float64)
        if shares.shape != ids.shape or not np.all(np.isfinite(shares)) or np.any(shares < 0):
            raise InvalidInputError(
                f"Cohort weights must be numbers of at least 0 in shape {ids.shape}, as the ids."
            )
        sizes = counts.sum(axis=1)[ids]
        if np.any((sizes == 0) & (shares > 0)):
            empty = ids[(sizes == 0) & (shares > 0)][0]
            raise InvalidInputError(f"Client {empty} holds no sample but has a weight above 0.")
        mixture = np.einsum("tk,tkn->tn", shares / np.maximum(sizes, 1), counts[ids])
    totals = mixture.sum(axis=1, keepdims=True)
    if np.any(totals == 0):
        row = int(np.argmax(totals[:, 0] == 0))
        raise InvalidInputError(f"Cohort {row} holds no sample of any weight: it has no GEMD.")
    everyone = counts.sum(axis=0) / counts.sum()
    distances: FloatArray = np.abs(mixture / totals - everyone).sum(axis=1)
    return distances


def gemd_from(
    everyone: FloatArray, cohort_counts: npt.NDArray[np.int64], weights: FloatArray
) -> float:
    """Return the GEMD of one cohort without looking at anybody else.

    Parameters
    ----------
    everyone : float64 array, shape [N]
        The label distribution of all clients.
    cohort_counts : int64 array, shape [K, N]
        The samples by class of those in the cohort, at least one each.
    weights : float64 array, shape [K]
        Aggregation weights, of any sum above 0.

    Examples
    --------
    >>> gemd_from(np.array([0.5, 0.5]), np.array([[15, 5]]), np.ones(1))
    0.5
    """
    mixture = (weights / cohort_counts.sum(axis=1)) @ cohort_counts
    return float(np.abs(mixture / mixture.sum() - everyone).sum())


def _counts(label_counts: npt.ArrayLike) -> FloatArray:
    counts = np.asarray(label_counts, dtype=np.float64)
    if counts.ndim != 2 or not np.all(np.isfinite(counts)) or np.any(counts < 0):
        raise InvalidInputError(
            f"Label counts must be numbers of at least 0 in shape [C, N], not {counts.shape}."
        )
    if counts.size and counts.max() > _MOST_SAMPLES:
        raise InvalidInputError(
            f"Label counts up to {counts.max():g} cannot be summed: give numbers of samples."
        )
    if counts.sum() == 0:
        raise InvalidInputError("The population holds no sample: it has no label distribution.")
    return counts


def _ids(cohorts: npt.ArrayLike, clients: int) -> npt.NDArray[np.int64]:
    ids = np.asarray(cohorts)
    if ids.ndim != 2:
        raise InvalidInputError(f"Cohorts must have shape [T, K], not {ids.shape}.")
    if ids.shape[1] == 0:
        raise NoClientsAvailableError("A cohort without clients has no GEMD: choose at least one.")
    if ids.dtype.kind not in "iu":
        raise InvalidInputError(f"Client ids must be integers, not {ids.dtype}.")
    wrong = ids[(ids < 0) | (ids >= clients)]
    if wrong.size:
        raise UnknownClientError(f"There is no client {wrong[0]}: ids go from 0 to {clients - 1}.")
    return ids.astype(np.int64)
