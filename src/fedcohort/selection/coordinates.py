"""The coordinates in which `match` compares profiles: principal directions, whitened with a ridge.

Along the principal directions of the profiles, with variances λ_0 ≥ λ_1 ≥ …, a client has the
coordinates z_j = (f_c − f̄)_j · √λ_j / (λ_j + ρ): whitening where λ_j is well above the ridge ρ,
and nothing where it is below, which is noise of small clients, or more than k clients could match:
ρ = 3 λ_2k, or 3 λ_32 from k = 16 on. Where there are fewer directions it is 3 times the last λ,
since whitening all of them would make all cohorts of a small federation equally near.
"""

import dataclasses
from typing import Any

import numpy as np
import scipy  # its parts are loaded when they are used
from numpy.typing import NDArray

from fedcohort.randomness import generator
from fedcohort.selection.base import Floats

# Directions that are kept at most, and clients that they are sought among at most.
DIRECTIONS = 64
_SAMPLED_CLIENTS = 20_000
# The ridge, in units of λ_2k (of λ_32, for large cohorts).
_RIDGE = 3.0
# Coordinates whose squares can still be summed.
_LARGEST = 1e100


@dataclasses.dataclass(frozen=True, eq=False)
class Basis:
    """Principal directions of a population's profiles.

    Attributes
    ----------
    unit : float
        What profiles are divided by first, so that huge and tiny ones can be squared.
    centre : float64 [Q]
        What is subtracted then.
    directions : float64 [r, Q]
        Orthonormal rows.
    variances : float64 [r]
        Variances along them, in descending order.
    clients, changed : int
        Clients at the fit, and how many came or changed since.
    """

    unit: float
    centre: Floats
    directions: Floats
    variances: Floats
    clients: int
    changed: int = 0

    @classmethod
    def fit(cls, profiles: NDArray[Any], sizes: Floats) -> "Basis":
        """Find the directions among all clients, or a fixed sample of a large population."""
        rows = np.arange(len(profiles))
        if len(rows) > _SAMPLED_CLIENTS:
            draw = generator(0, "match directions").choice(len(rows), _SAMPLED_CLIENTS, False)
            rows = np.sort(draw)
        share = sizes[rows] / sizes[rows].sum()
        sample = profiles[rows].astype(np.float64)
        unit = float(np.abs(sample).max()) or 1.0
        sample /= unit
        centre = share @ sample
        sample = (sample - centre) * np.sqrt(share)[:, None]
        wide = sample.shape[1] > sample.shape[0]
        gram = sample @ sample.T if wide else sample.T @ sample
        count = min(DIRECTIONS, len(gram))
        values, vectors = scipy.linalg.eigh(
            gram, subset_by_index=[len(gram) - count, len(gram) - 1]
        )
        values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1].T
        keep = values > 1e-12 * max(values[0], 1e-300)
        values, vectors = values[keep], vectors[keep]
        if wide:
            vectors = (vectors @ sample) / np.sqrt(values)[:, None]
        return cls(unit, centre, vectors, values, len(profiles))

    def project(self, profiles: NDArray[Any]) -> Floats:
        """Return the coordinates [m, r] of profiles [m, Q] along the directions."""
        with np.errstate(over="ignore", invalid="ignore"):
            projected = (profiles / self.unit - self.centre) @ self.directions.T
        # Whoever is so far outside may be anywhere out there.
        far: Floats = np.nan_to_num(projected, nan=_LARGEST, posinf=_LARGEST, neginf=-_LARGEST)
        return np.clip(far, -_LARGEST, _LARGEST)

    def floor(self, k: int) -> float:
        """Return the variance that counts as noise: λ_2k, λ_32, or the last one."""
        if not len(self.variances):
            return 0.0
        return float(self.variances[min(2 * k, DIRECTIONS // 2, len(self.variances) - 1)])

    def scales(self, k: int) -> Floats:
        """Return √λ / (λ + ρ) for each direction."""
        return np.sqrt(self.variances) / (self.variances + _RIDGE * self.floor(k))

    def noise(self, k: int, whitened: bool = True) -> float:
        """Return the variance of the coordinates, all together, that is chance in a mean client.

        A profile is a mean over n_c samples, so that of client c is this times n̄ / n_c. It is
        taken to be the ridge along every direction.
        """
        scales = self.scales(k) if whitened else np.ones(len(self.variances))
        return float(_RIDGE * self.floor(k) * (scales @ scales))
