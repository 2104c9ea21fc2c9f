"""The k-DPP of FL-DP³S: drawing k clients that differ from one another.

Y. Zhang, C. Xu, H. H. Yang, X. Wang, T. Q. S. Quek: DPP-based Client Selection for Federated
Learning with Non-IID Data. ICASSP 2023.

The probability of a cohort Y is det(L_Y) / e_k(L), where L_Y is the kernel restricted to Y and
e_k(L) the sum of the determinants of all cohorts of size k.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.dpp.elementary import choice_probabilities, log_elementary
from fedcohort.dpp.kernels import as_kernel, as_profiles, similarity
from fedcohort.dpp.landmarks import Landmarks, gram, low_rank_spectrum
from fedcohort.dpp.spectral import Spectrum, choose_eigenvectors, choose_items
from fedcohort.errors import (
    CohortSizeError,
    InvalidInputError,
    InvalidKernelError,
    InvalidParameterError,
)
from fedcohort.randomness import check_generator

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

_EPSILON = float(np.finfo(np.float64).eps)


@dataclasses.dataclass(frozen=True)
class Report:
    """What a sampler is made of.

    Parameters
    ----------
    kind : {"exact", "low-rank", "uniform"}
        Whether the kernel is the given one, its low-rank approximation, or none because it
        tells no two clients apart.
    clients : int
        C, how many clients can be drawn.
    cohort : int
        k, how many clients a draw has.
    rank : int
        How many eigenvalues of the kernel are not zero up to rounding.
    from_kernel : int
        How many members the k-DPP draws: the smaller of `cohort` and `rank`.
    from_uniform : int
        How many members are drawn uniformly from the clients that are left.
    landmarks : int or None
        How many landmarks the approximation rests on; None where there is none.

    Examples
    --------
    >>> profiles = np.random.default_rng(1).normal(size=(100, 16))
    >>> KDPP.from_profiles(profiles, k=10).report.kind
    'exact'
    """

    kind: Literal["exact", "low-rank", "uniform"]
    clients: int
    cohort: int
    rank: int
    from_kernel: int
    from_uniform: int
    landmarks: int | None


@dataclasses.dataclass(frozen=True, eq=False)
class KDPP:
    """A distribution over cohorts of k clients. Build it with one of the ``from_`` methods.

    Clients are named by their position, 0 to C − 1, in what the sampler was built from. When the
    kernel's numerical rank is below k there is no k-DPP; then as many members as the rank are
    drawn from the kernel and the others uniformly from the clients that are left. All
    probabilities are those of that mixture, and `report` tells.

    Parameters
    ----------
    spectrum : Spectrum
        The kernel's eigenvalues above rounding, and their eigenvectors.
    k : int
        How many clients a draw has.
    landmarks : int or None
        How many landmarks the kernel was approximated with, if it was.

    Examples
    --------
    >>> profiles = np.random.default_rng(1).normal(size=(100, 16))
    >>> sampler = KDPP.from_profiles(profiles, k=10)
    >>> len(sampler.sample(np.random.default_rng(0)))
    10
    """

    spectrum: Spectrum
    k: int
    landmarks: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", _cohort_size(self.k, self.spectrum.items))

    @classmethod
    def from_profiles(
        cls,
        profiles: ArrayLike | Sequence[ArrayLike],
        k: int,
        *,
        rank: int | None = None,
        available: ArrayLike | None = None,
        landmark_seed: int = 0,
    ) -> KDPP:
        """Build the sampler of the paper from clients' profiles.

        The exact kernel takes C² memory and C³ time; with `rank` neither grows faster than C.

        Parameters
        ----------
        profiles : array_like of shape [C, Q]
            One row per client.
        k : int
            How many clients a draw has.
        rank : int, optional
            How many k-means++ landmarks approximate the kernel, at least k. The exact kernel
            when not given.
        available : array_like of int, shape [a], optional
            Rows of the clients that can be drawn. The kernel still compares each of them with
            all C clients. Draws then name positions in `available`.
        landmark_seed : int
            Seed of the choice of landmarks.
        """
        array = as_profiles(profiles)
        rows = None if available is None else available_rows(available, len(array))
        # Before the work, not after it.
        size = _cohort_size(k, len(array) if rows is None else rows.size)
        if rank is None:
            return cls._from_square(similarity(array), size, rows)
        if not isinstance(rank, int | np.integer) or rank < size:
            raise InvalidParameterError(
                f"rank must be a whole number of at least the cohort size {size}, not {rank!r}."
            )
        landmarks = Landmarks.fit(array, rank, seed=landmark_seed)
        features = landmarks.features(array)
        if rows is None:
            return cls.from_features(features, landmarks, size)
        return cls.from_features(features[rows], landmarks, size, population_gram=gram(features))

    @classmethod
    def from_features(
        cls,
        features: Floats,
        landmarks: Landmarks,
        k: int,
        *,
        population_gram: Floats | None = None,
    ) -> KDPP:
        """Build the low-rank sampler from features, in O(C r²).

        Parameters
        ----------
        features : ndarray of shape [a, r]
            `landmarks.features` of the clients that can be drawn. They are not copied: leave
            them unchanged as long as the sampler is in use.
        landmarks : Landmarks
        k : int
            How many clients a draw has.
        population_gram : ndarray of shape [r, r], optional
            `fedcohort.dpp.gram` of the features of all clients, since the kernel compares each
            with all. When not given, those that can be drawn are all.
        """
        spectrum = low_rank_spectrum(features, landmarks.signs, population_gram)
        return cls(spectrum, k, landmarks=len(landmarks.points))

    @classmethod
    def _from_square(cls, s: Floats, k: int, rows: Indices | None) -> KDPP:
        """Build the sampler with kernel L = SᵀS; squaring first would lose half of the digits."""
        if np.all(s == s[0, 0]):
            return cls(Spectrum.empty(len(s) if rows is None else rows.size), k)
        if rows is None:
            values, vectors = np.linalg.eigh(s)
            return cls(Spectrum.from_singular(np.abs(values), vectors.T, len(s) * _EPSILON), k)
        # S[:, rows] and its triangular factor have the same right singular vectors.
        _, values, vectors = np.linalg.svd(np.linalg.qr(s[:, rows], mode="r"))
        return cls(Spectrum.from_singular(values, vectors, len(s) * _EPSILON), k)

    @classmethod
    def from_kernel(cls, kernel: ArrayLike, k: int) -> KDPP:
        """Build the sampler of any kernel.

        Parameters
        ----------
        kernel : array_like of shape [C, C]
            Symmetric and positive semi-definite.
        k : int
            How many clients a draw has.

        Raises
        ------
        InvalidKernelError
            When the kernel is not square, finite, symmetric and positive semi-definite.
        """
        values, vectors = np.linalg.eigh(as_kernel(kernel))
        if values[0] < -1e-8 * max(values[-1], -values[0]):
            raise InvalidKernelError(
                f"The kernel is not positive semi-definite: it has the eigenvalue {values[0]:g}."
            )
        # `from_singular` takes the roots of the eigenvalues, and so the root of the tolerance.
        roots = np.sqrt(np.maximum(values, 0.0))
        tolerance = math.sqrt(len(roots) * _EPSILON)
        return cls(Spectrum.from_singular(roots, vectors.T, tolerance), k)

    def resized(self, k: int) -> KDPP:
        """Return the sampler of another cohort size, from the same decomposition."""
        return dataclasses.replace(self, k=k)

    @property
    def report(self) -> Report:
        """What this sampler is made of."""
        rank = self.spectrum.rank
        kernel = self._from_kernel
        return Report(
            kind="uniform" if rank == 0 else "exact" if self.landmarks is None else "low-rank",
            clients=self.spectrum.items,
            cohort=self.k,
            rank=rank,
            from_kernel=kernel,
            from_uniform=self.k - kernel,
            landmarks=self.landmarks,
        )

    @property
    def _from_kernel(self) -> int:
        return min(self.k, self.spectrum.rank)

    @functools.cached_property
    def _table(self) -> Floats:
        return log_elementary(self.spectrum.log_values, self._from_kernel)

    @property
    def log_normalizer(self) -> float:
        """The logarithm of e_k(L), the sum of the determinants of all cohorts.

        When the rank is below k, that of all sets of as many clients as the rank.
        """
        return float(self._table[-1, -1])

    def sample(self, rng: np.random.Generator, size: int | None = None) -> Indices:
        """Draw cohorts.

        Parameters
        ----------
        rng : numpy.random.Generator
            The only source of randomness.
        size : int, optional
            How many cohorts; many in one call cost far less than one by one.

        Returns
        -------
        ndarray of int64, shape [k], or [size, k] when `size` is given
            Distinct clients in ascending order.
        """
        check_generator(rng)
        draws = 1 if size is None else size
        chosen = choose_eigenvectors(self._table, rng, draws)
        members = np.sort(choose_items(self.spectrum, chosen, rng), axis=1)
        if self._from_kernel < self.k:
            members = np.stack([self._fill_up(row, rng) for row in members])
        return members[0] if size is None else members

    def _fill_up(self, members: Indices, rng: np.random.Generator) -> Indices:
        left = self.spectrum.items - members.size
        extra = rng.choice(left, self.k - members.size, replace=False, shuffle=False)
        # The i-th client that is not a member: step over the members that come before it.
        extra += np.searchsorted(members - np.arange(members.size), extra, side="right")
        return np.sort(np.concatenate([members, extra]))

    def log_probability(self, ids: ArrayLike) -> float | Floats:
        """Return the logarithm of the probability that a draw is this cohort.

        Parameters
        ----------
        ids : array_like of int, shape [k] or [n, k]
            Distinct clients, in any order.

        Returns
        -------
        float, or ndarray of shape [n]
            −inf where the cohort's determinant is zero up to rounding.
        """
        cohorts = self._as_cohorts(ids)
        logs = np.array([self._log_determinant(cohort) for cohort in np.atleast_2d(cohorts)])
        kernel = self._from_kernel
        logs -= _log_binomial(self.spectrum.items - kernel, self.k - kernel)
        return float(logs[0]) if cohorts.ndim == 1 else logs

    def _log_determinant(self, cohort: Indices) -> float:
        """Return log(e_m(L_Y) / e_m(L)) with m = `_from_kernel`; for m = k it is det(L_Y) / e_k(L).

        Summed over the m-subsets of Y, det(L_T) gives e_m(L_Y).
        """
        rank, kernel = self.spectrum.rank, self._from_kernel
        rows = self.spectrum.vectors.entries(cohort[None, :], np.arange(rank)[None, :])[0]
        log_ratio = 0.0
        # Where all eigenvectors are used their eigenvalues cancel.
        if kernel < rank:
            logs = self.spectrum.log_values
            rows = rows * np.exp((logs - logs[0]) / 2)
            log_ratio = kernel * logs[0] - self.log_normalizer
        values = np.linalg.svd(rows, compute_uv=False)[:kernel]
        tolerance = max(self.spectrum.items, rank) * _EPSILON
        if kernel and not values[-1] > tolerance * values[0]:
            return -np.inf
        return float(2 * np.log(values).sum() + log_ratio)

    def inclusion_probabilities(self) -> Floats:
        """Return each client's probability of being in a draw, shape [C], summing to k."""
        return self._inclusion.copy()

    @functools.cached_property
    def _inclusion(self) -> Floats:
        kernel, clients = self._from_kernel, self.spectrum.items
        if kernel == 0:
            return np.full(clients, self.k / clients)
        chosen = choice_probabilities(self.spectrum.log_values, self._table)
        first = np.minimum(self.spectrum.vectors.weighted_squares(chosen), 1.0)
        if kernel == self.k:
            return first
        first += (1 - first) * ((self.k - kernel) / (clients - kernel))
        return first

    def horvitz_thompson_weights(self, ids: ArrayLike, sizes: ArrayLike | None = None) -> Floats:
        """Return aggregation weights whose weighted sum has the full average as its expectation.

        A member's share of all samples is divided by its probability of being drawn
        (Horvitz and Thompson, 1952). The weights of one cohort do not sum to 1; over draws their
        sum does on average.

        Parameters
        ----------
        ids : array_like of int, shape [k] or [n, k]
            What `sample` returned.
        sizes : array_like of shape [C], optional
            Samples of each client; equal when not given.

        Returns
        -------
        ndarray of the shape of `ids`
        """
        cohorts = self._as_cohorts(ids)
        clients = self.spectrum.items
        shares = np.ones(clients) if sizes is None else np.asarray(sizes, dtype=np.float64)
        if shares.shape != (clients,):
            raise InvalidInputError(
                f"sizes must hold one number for each of {clients} clients, "
                f"not have the shape {shares.shape}."
            )
        if not (np.isfinite(shares).all() and (shares >= 0).all() and shares.sum() > 0):
            raise InvalidInputError("sizes must be finite, not negative, and not all zero.")
        result: Floats = (shares / shares.sum())[cohorts] / self._inclusion[cohorts]
        return result

    def _as_cohorts(self, ids: ArrayLike) -> Indices:
        cohorts = np.asarray(ids)
        if cohorts.ndim not in (1, 2) or cohorts.shape[-1] != self.k:
            raise CohortSizeError(
                f"A cohort here has {self.k} clients, but ids have the shape {cohorts.shape}."
            )
        if cohorts.dtype.kind not in "iu":
            raise InvalidInputError(f"ids must be whole numbers, not {cohorts.dtype}.")
        ordered = np.sort(cohorts, axis=-1)
        if cohorts.size and (ordered.min() < 0 or ordered.max() >= self.spectrum.items):
            raise InvalidInputError(f"ids must lie between 0 and {self.spectrum.items - 1}.")
        if (ordered[..., 1:] == ordered[..., :-1]).any():
            raise InvalidInputError("A cohort holds the same client twice.")
        return cohorts.astype(np.int64)


def available_rows(available: ArrayLike, clients: int) -> Indices:
    """Return `available` as distinct rows below `clients`, or say what is wrong with it."""
    rows = np.asarray(available)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise InvalidInputError("available must be a list of rows.")
    if rows.size and (rows.min() < 0 or rows.max() >= clients):
        raise InvalidInputError(f"available must hold rows between 0 and {clients - 1}.")
    if np.unique(rows).size < rows.size:
        raise InvalidInputError("available holds the same row twice.")
    return rows.astype(np.int64)


def _cohort_size(k: int, clients: int) -> int:
    try:
        size = operator.index(k)
    except TypeError:
        raise CohortSizeError(f"The cohort size must be a whole number, not {k!r}.") from None
    if not 1 <= size <= clients:
        raise CohortSizeError(
            f"A cohort of {size} cannot be drawn from {clients} clients: "
            f"choose a size from 1 to {clients}."
        )
    return size


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
