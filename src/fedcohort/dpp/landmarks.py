"""A low-rank kernel from a few landmarks.

Landmarks are spread over the population by k-means++ (Arthur and Vassilvitskii, 2007): seeded
at clients, then moved to the means of the clients nearest to them, so that no single client is
represented better than its neighbours (Zhang, Tsang and Kwok, "Improved Nyström Low-Rank
Approximation and Error Analysis", 2008). With A the similarities of clients to landmarks and W
those among landmarks, Nyström's approximation is S ≈ A W⁺ Aᵀ. W may
have negative eigenvalues, so with W⁺ = U diag(sign(w)/|w|) Uᵀ every client gets the *features*
φ = a U |w|^(−1/2), and S ≈ Φ J Φᵀ with J = diag(sign(w)). Then L = S² ≈ Φ J (ΦᵀΦ) J Φᵀ, whose
restriction to some rows needs those rows and the small matrix ΦᵀΦ of all clients.

A client's features depend on its own profile and the landmarks alone: clients join and leave
without touching anybody else's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.dpp.eigenvectors import FactoredEigenvectors
from fedcohort.dpp.kernels import Frame, as_profiles, distances, row_blocks
from fedcohort.dpp.spectral import Spectrum
from fedcohort.errors import InvalidInputError, InvalidParameterError, InvalidProfilesError
from fedcohort.randomness import generator

Floats = NDArray[np.float64]

# Landmarks are sought among at most so many clients: enough to meet any group that holds one
# client in a thousand, and few enough that seeding costs a second at any population.
_SEEDING_CLIENTS = 2**14

# Squared distances below this share of the largest squared norm are rounding or noise: such a
# client is no second landmark.
_SAME_PLACE = 1e-12

# Eigenvalues of W up to this share of the largest are left out of its pseudo-inverse.
_INVERTIBLE_SHARE = 1e-10

# Directions of the features with less than this share of the largest variance are rounding.
_DIRECTION_SHARE = 1e-12

# From this share down, a basis made from the squared features is made orthonormal a second time.
_ORTHONORMAL_SHARE = 1e-7

# How often landmarks are moved; further steps change inclusion probabilities by a few per mille.
_SETTLING_STEPS = 3

_SWEEPS = 4
_SWEEP_SOURCES = 16

# See `Landmarks.drifted`.
_DRIFT_QUANTILE = 0.99
_DRIFT_MARGIN = 0.05
_DRIFT_SHARE = 0.05
_DRIFT_REACH = 1.1


@dataclasses.dataclass(frozen=True, eq=False)
class Landmarks:
    """Fixed landmarks, and what turns a profile into features. Build it with `fit`.

    Parameters
    ----------
    frame : Frame
        The shift and scale of the population that was fitted.
    points : ndarray of shape [p, Q]
        Where the landmarks lie, in the frame.
    scale : float
        The population's largest distance, in the frame; 0 when all profiles are equal.
    whitening : ndarray of shape [p, r]
        U |w|^(−1/2) of the landmarks' own similarities.
    signs : ndarray of shape [r]
        Signs of w.
    tolerated : float
        The largest of the `residuals` that count as ordinary: the value that 99 of 100 clients
        stayed below at the fit, plus 0.05.

    Examples
    --------
    >>> profiles = np.random.default_rng(1).normal(size=(100, 16))
    >>> Landmarks.fit(profiles, 20).features(profiles).shape
    (100, 20)
    """

    frame: Frame
    points: Floats
    scale: float
    whitening: Floats
    signs: Floats
    tolerated: float

    @classmethod
    def fit(
        cls, profiles: ArrayLike | Sequence[ArrayLike], count: int, *, seed: int = 0
    ) -> Landmarks:
        """Place landmarks and measure the population's extent.

        Parameters
        ----------
        profiles : array_like of shape [C, Q]
            The population. A float32 array is read in blocks, never copied whole.
        count : int
            How many landmarks; fewer are used when fewer profiles differ.
        seed : int
            Seed of the k-means++ seeding. It is no part of the sampler's randomness: the same
            profiles and seed give the same landmarks.
        """
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
            raise InvalidParameterError(
                f"The number of landmarks must be a whole number from 1, not {count!r}."
            )
        array = as_profiles(profiles)
        rng = generator(seed, "landmarks")
        sample = array
        if len(array) > _SEEDING_CLIENTS:
            sample = array[np.sort(rng.choice(len(array), _SEEDING_CLIENTS, replace=False))]
        frame = Frame.around(array, sample)
        framed = frame(sample)
        points = settled(framed, framed[spread(framed, int(count), rng)])
        scale = largest_distance(array, frame, points)
        if scale == 0:
            nothing = np.empty(0)
            return cls(frame, points[:1], 0.0, np.empty((1, 0)), nothing, 1.0)
        values, vectors = np.linalg.eigh(1 - distances(points, points) / scale)
        strength = np.abs(values)
        keep = strength > _INVERTIBLE_SHARE * strength.max()
        whitening = vectors[:, keep] / np.sqrt(strength[keep])
        fitted = cls(frame, points, scale, whitening, np.sign(values[keep]), 1.0)
        usual = np.quantile(fitted.residuals(fitted.features(sample)), _DRIFT_QUANTILE)
        return dataclasses.replace(fitted, tolerated=float(usual) + _DRIFT_MARGIN)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return all of it as plain arrays, for saving without pickle."""
        own = {f.name: np.asarray(getattr(self, f.name)) for f in dataclasses.fields(self)[1:]}
        return own | {"unit": np.asarray(self.frame.unit), "centre": self.frame.centre}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Landmarks:
        """Return the landmarks that `to_arrays` took apart; other names are ignored."""
        return cls(
            frame=Frame(float(arrays["unit"]), arrays["centre"]),
            points=arrays["points"],
            scale=float(arrays["scale"]),
            whitening=arrays["whitening"],
            signs=arrays["signs"],
            tolerated=float(arrays["tolerated"]),
        )

    @property
    def width(self) -> int:
        """How many features a client has."""
        return int(self.whitening.shape[1])

    def features(self, profiles: ArrayLike | Sequence[ArrayLike]) -> Floats:
        """Return the features of clients, whether or not they were there at the fit.

        Parameters
        ----------
        profiles : array_like of shape [m, Q]

        Returns
        -------
        ndarray of shape [m, r]
            At most one feature a landmark. The similarity to a landmark farther away than
            `scale` counts as 0, as that of the most distant clients does.
        """
        array = self._checked(profiles)
        result = np.empty((len(array), self.width))
        for rows in row_blocks(*array.shape):
            near = self._distances(array[rows])
            near /= -self.scale or -1.0
            near += 1.0
            np.maximum(near, 0.0, out=near)
            np.matmul(near, self.whitening, out=result[rows])
        return result

    def reach(self, profiles: ArrayLike | Sequence[ArrayLike]) -> float:
        """Return the largest distance from a profile to a landmark, in units of `scale`.

        Above 1, the population has become wider than it was at the fit.
        """
        array = self._checked(profiles)
        farthest = max(
            float(self._distances(array[rows]).max()) for rows in row_blocks(*array.shape)
        )
        return farthest / self.scale if self.scale > 0 else math.inf if farthest > 0 else 0.0

    def residuals(self, features: Floats) -> Floats:
        """Return 1 − Ŝ_cc for each client: how much of itself the landmarks fail to explain.

        Parameters
        ----------
        features : ndarray of shape [m, r]

        Returns
        -------
        ndarray of shape [m]
            0 at a landmark, near 1 for a client unlike every landmark.
        """
        result = np.empty(len(features))
        for rows in row_blocks(len(features), max(self.width, 1)):
            block = features[rows]
            result[rows] = 1.0 - (block * block) @ self.signs
        return result

    def drifted(self, features: Floats, reach: float = 0.0) -> bool:
        """Tell whether the population has moved so far that landmarks should be fitted anew.

        It has when more than one client in twenty has `residuals` above `tolerated`, that is,
        is explained clearly worse than 99 of 100 clients were at the fit; or when somebody is
        more than 1.1 times `scale` away from a landmark, so that the paper's max S⁰ has grown.

        Parameters
        ----------
        features : ndarray of shape [C, r]
            Of the present population.
        reach : float
            The largest `reach` of the clients that joined since the fit.
        """
        if reach > _DRIFT_REACH:
            return True
        return float((self.residuals(features) > self.tolerated).mean()) > _DRIFT_SHARE

    def _checked(self, profiles: ArrayLike | Sequence[ArrayLike]) -> NDArray[Any]:
        array = as_profiles(profiles)
        if array.shape[1] != self.points.shape[1]:
            raise InvalidProfilesError(
                f"The profile of client 0 has {array.shape[1]} numbers, "
                f"but the landmarks have {self.points.shape[1]}."
            )
        return array

    def _distances(self, block: NDArray[Any]) -> Floats:
        # The approximation is coarser than the rounding that is left here (1e-12 of the scale).
        return distances(self.frame(block), self.points, exact_share=1e-8)


def spread(framed: Floats, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return rows spread over the data by greedy k-means++ seeding.

    Each next row is the best of a few candidates, drawn with probability proportional to the
    squared distance from the rows of `framed` [n, Q] chosen so far. Fewer than `count` are chosen
    where fewer rows differ.
    """
    norms = np.einsum("ij,ij->i", framed, framed)
    same = _SAME_PLACE * norms.max()

    def squared_distances(rows: NDArray[np.int64]) -> Floats:
        squares: Floats = norms[rows][:, None] + norms[None, :] - 2 * (framed[rows] @ framed.T)
        squares[squares <= same] = 0.0
        return squares

    trials = 2 + int(math.log(count))
    chosen = [int(rng.integers(len(framed)))]
    closest = squared_distances(np.array(chosen))[0]
    while len(chosen) < count and closest.max() > 0:
        cumulative = np.cumsum(closest)
        # Rounding up to the total would name a row past the end.
        draws = np.minimum(rng.random(trials) * cumulative[-1], np.nextafter(cumulative[-1], 0))
        candidates = np.searchsorted(cumulative, draws, side="right")
        after = np.minimum(squared_distances(candidates), closest)
        best = int(after.sum(axis=1).argmin())
        chosen.append(int(candidates[best]))
        closest = after[best]
    return np.array(chosen)


def settled(framed: Floats, points: Floats) -> Floats:
    """Return landmarks [p, Q] moved to the means of the rows [n, Q] nearest to them (Lloyd).

    A landmark that no row is nearest to stays where it is.
    """
    for _ in range(_SETTLING_STEPS):
        norms = np.einsum("ij,ij->i", points, points)
        nearest = (norms[:, None] - 2 * (points @ framed.T)).argmin(axis=0)
        members = (nearest == np.arange(len(points))[:, None]).astype(np.float64)
        size = members.sum(axis=1, keepdims=True)
        points = np.where(size > 0, members @ framed / np.maximum(size, 1.0), points)
    return points


def largest_distance(profiles: NDArray[Any], frame: Frame, points: Floats) -> float:
    """Return the population's largest distance, found without comparing all pairs.

    From each landmark in `points` [p, Q] go to the client in `profiles` [C, Q] farthest from it,
    from the most distant of those again, and so on until the distance stops growing. The result is
    never too large.
    """
    sources, largest = points, 0.0
    for _ in range(_SWEEPS):
        rows, squares = _farthest(profiles, frame, sources)
        best = np.argsort(squares)[::-1][:_SWEEP_SOURCES]
        arrived = frame(profiles[rows[best]])
        reached = float(np.linalg.norm(arrived[0] - sources[best[0]]))
        if reached <= largest:
            break
        largest = reached
        sources = arrived[np.sort(np.unique(rows[best], return_index=True)[1])]
    return largest


def _farthest(
    profiles: NDArray[Any], frame: Frame, sources: Floats
) -> tuple[NDArray[np.int64], Floats]:
    """Return, for each source, the row farthest from it and the squared distance."""
    rows = np.zeros(len(sources), dtype=np.int64)
    largest = np.full(len(sources), -np.inf)
    each = np.arange(len(sources))
    norms = np.einsum("ij,ij->i", sources, sources)
    for block in row_blocks(*profiles.shape):
        framed = frame(profiles[block])
        squares = framed @ (-2.0 * sources.T)
        squares += np.einsum("ij,ij->i", framed, framed)[:, None]
        found = squares.argmax(axis=0)
        value = squares[found, each] + norms
        better = value > largest
        rows[better] = block.start + found[better]
        largest[better] = value[better]
    return rows, largest


def gram(features: Floats) -> Floats:
    """Return ΦᵀΦ [r, r] of features [C, r].

    It is a sum over clients: add the Gram matrix of those who join, subtract that of those who
    leave.

    Parameters
    ----------
    features : float64 [C, r]
        What `Landmarks.features` returned.

    Examples
    --------
    >>> gram(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([[10., 14.],
           [14., 20.]])
    """
    return features.T @ features


def low_rank_spectrum(
    features: Floats, signs: Floats, population_gram: Floats | None = None
) -> Spectrum:
    """Return the spectrum of Φ J G J Φᵀ.

    Φ is `features` [a, r] of the clients that can be drawn, J has the diagonal `signs` [r], and G
    [r, r] is the Gram matrix of all clients; that of `features` when not given.
    """
    if features.ndim != 2 or features.shape[1] != signs.size:
        raise InvalidInputError(
            f"Features must have the shape [clients, {signs.size}], not {features.shape}."
        )
    own = gram(features)
    everyone = own if population_gram is None else population_gram
    if everyone.shape != own.shape:
        raise InvalidInputError(
            f"The population's Gram matrix must have the shape {own.shape}, not {everyone.shape}."
        )
    if not own.any():
        return Spectrum.empty(len(features))
    values, vectors = np.linalg.eigh(own)
    keep = values > _DIRECTION_SHARE * values[-1]
    roots = np.sqrt(values[keep])
    # Φ = Q · factor with orthonormal Q = Φ · to_basis.
    to_basis, factor = vectors[:, keep] / roots, roots[:, None] * vectors[:, keep].T
    if values[keep][0] < _ORTHONORMAL_SHARE * values[-1]:
        # Squaring the features has cost the weak directions their digits (Cholesky-QR2).
        again = np.zeros((roots.size, roots.size))
        for rows in row_blocks(*features.shape):
            again += gram(features[rows] @ to_basis)
        triangle = np.linalg.cholesky(again)
        to_basis = np.linalg.solve(triangle, to_basis.T).T
        factor = triangle.T @ factor
    values, vectors = np.linalg.eigh(everyone)
    half = vectors * np.sqrt(np.maximum(values, 0.0))
    rotation, sigma, _ = np.linalg.svd(factor * signs @ half, full_matrices=False)
    keep = sigma > _DIRECTION_SHARE * sigma[0]
    mixing = to_basis @ rotation[:, keep]
    return Spectrum(2 * np.log(sigma[keep]), FactoredEigenvectors(features, mixing))
