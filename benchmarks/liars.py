"""What liars may send in the place of their profile or their size, to test selectors with.

Each attack takes honest profiles [C, Q], the rows of the liars and a generator, and returns the
profiles that the server gets; `claimed` does so for sizes. The liars' data stay what they are: that
is the point of lying.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Attack = Callable[[Floats, Rows, np.random.Generator], Floats]


def scaled(factor: float) -> Attack:
    """Multiply the own profile, to stretch distances for all (−1 turns it round)."""

    def attack(profiles: Floats, liars: Rows, rng: np.random.Generator) -> Floats:  # noqa: ARG001
        return _replaced(profiles, liars, profiles[liars] * factor)

    return attack


def copies(place: str, jitter: float = 0.0) -> Attack:
    """Send one profile from many clients.

    Parameters
    ----------
    place : {"client", "mean", "outside", "far"}
        An honest client's profile; everyone's mean, with which liars alone make a perfect match;
        a place as far out as honest clients are, where nobody is; or a million times as far.
    jitter : float
        How far the copies are from each other, in units of what is usual between neighbours.
    """

    def attack(profiles: Floats, liars: Rows, rng: np.random.Generator) -> Floats:
        honest = np.delete(profiles, liars, axis=0)
        mean = honest.mean(axis=0)
        reach = np.linalg.norm(honest - mean, axis=1).max()
        direction = rng.normal(size=profiles.shape[1])
        direction *= reach / np.linalg.norm(direction)
        sent = {
            "client": honest[rng.integers(len(honest))],
            "mean": mean,
            "outside": mean + direction,
            "far": mean + 1e6 * direction,
        }[place]
        noise = rng.normal(size=(len(liars), profiles.shape[1])) / np.sqrt(2 * profiles.shape[1])
        return _replaced(profiles, liars, sent + jitter * usual_distance(honest) * noise)

    return attack


def swapped(profiles: Floats, liars: Rows, rng: np.random.Generator) -> Floats:
    """Send, each liar, what another client near some honest one would send."""
    honest = np.delete(profiles, liars, axis=0)
    models = honest[rng.choice(len(honest), len(liars), replace=False)]
    noise = rng.normal(size=models.shape) / np.sqrt(2 * models.shape[1])
    return _replaced(profiles, liars, models + usual_distance(honest) * noise)


def claimed(factor: float) -> Callable[[Floats, Rows], Floats]:
    """Claim to hold `factor` times as many samples; sizes [C] and liars to claimed sizes [C]."""

    def attack(sizes: Floats, liars: Rows) -> Floats:
        said = sizes.copy()
        said[liars] *= factor
        return said

    return attack


def usual_distance(profiles: Floats) -> float:
    """Return the median distance of a profile to its nearest neighbour."""
    squares = np.einsum("ij,ij->i", profiles, profiles)
    apart = squares[:, None] + squares - 2 * profiles @ profiles.T
    np.fill_diagonal(apart, np.inf)
    return float(np.median(np.sqrt(np.maximum(apart.min(axis=1), 0.0))))


def _replaced(profiles: Floats, liars: Rows, sent: Floats) -> Floats:
    received = profiles.copy()
    received[liars] = sent
    return received


# How many of 100 clients lie, and how.
ATTACKS: Mapping[str, tuple[int, Attack]] = MappingProxyType(
    {
        "one profile × 1e6": (1, scaled(1e6)),
        "one profile turned round": (1, scaled(-1.0)),
        "one profile × 3": (1, scaled(3.0)),
        "10 copies, far out": (10, copies("far")),
        "10 copies of a client": (10, copies("client")),
        "10 copies of the mean": (10, copies("mean")),
        "10 copies where nobody is": (10, copies("outside")),
        "10 near-copies where nobody is": (10, copies("outside", jitter=0.1)),
        "10 as if of a new kind": (10, copies("outside", jitter=1.0)),
        "10 as if of another kind": (10, swapped),
    }
)
