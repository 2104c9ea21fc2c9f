"""Diverse cohorts from a k-DPP over profiles: FL-DP³S.

Y. Zhang, C. Xu, H. H. Yang, X. Wang, T. Q. S. Quek: DPP-based Client Selection for Federated
Learning with Non-IID Data. ICASSP 2023.

Rule: every client sends its profile f_c once, the mean output of the initial model's first fully
connected layer. With S⁰_mn = ‖f_m − f_n‖ and S = 1 − (S⁰ − min S⁰) / (max S⁰ − min S⁰), each round
draws k clients from the k-DPP with kernel L = SᵀS: Pr(Y) ∝ det(L_Y). Weights n_c / Σ n_c.

Beyond the paper: only available clients are drawn, exactly, by restricting L to them; a large
population is drawn from a low-rank approximation of S whose landmarks stay while clients come and
go; and weights can make the average unbiased.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.dpp import KDPP, Landmarks, gram
from fedcohort.parameters import Interval, OneOf, parameter
from fedcohort.selection.base import Cohort, Floats, Need
from fedcohort.selection.guard import ProfileSelector
from fedcohort.selection.registry import register
from fedcohort.selection.roster import Rows

# The exact kernel takes C² memory and C³ time: seconds at this population.
LARGEST_EXACT = 3000

_FEATURES = "features"
_SAVED = "landmarks."


@register("dp3s")
@dataclasses.dataclass(kw_only=True, eq=False)
class DP3S(ProfileSelector):
    """Draw clients whose profiles differ.

    Parameters
    ----------
    guard : {"off", "profiles", "updates"}
        Who is left out: nobody; clients whose profiles look forged; or also those whose training
        contradicts their profile.
    outputs : int, optional
        Length of the output layer's bias, for the guard ``updates``: that of the simulated model,
        or 10.
    kernel : {"auto", "exact", "low-rank"}
        How S is represented; ``auto`` is exact up to 3000 clients.
    rank : int
        Landmarks of the low-rank kernel; never fewer than twice the cohort.
    weights : {"size", "unbiased"}
        n_c / Σ n_c as in the paper, or Horvitz–Thompson weights, with which the expected average
        over cohorts is that of full participation.

    Examples
    --------
    >>> profiles = np.random.default_rng(1).normal(size=(100, 16))
    >>> len(DP3S().fit(profiles).select(10, rng=np.random.default_rng(0)))
    10
    """

    kernel: str = parameter("auto", OneOf("auto", "exact", "low-rank"))
    rank: int = parameter(64, Interval(1, integral=True))
    weights: str = parameter("size", OneOf("size", "unbiased"))

    def __post_init__(self) -> None:
        super().__post_init__()
        self._kdpp: KDPP | None = None
        self._rows: Rows = np.empty(0, np.intp)
        self._landmarks: Landmarks | None = None
        self._gram: Floats | None = None
        self._landmark_count = 0
        self._reach = 0.0

    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        kdpp = self._process(k, rows)
        drawn = kdpp.sample(rng)
        if self.weights == "size":
            return self._cohort(rows[drawn])
        sizes = self._roster["size"][rows]
        return self._cohort(rows[drawn], kdpp.horvitz_thompson_weights(drawn, sizes))

    def describe(self) -> dict[str, Any]:
        """Say how the kernel is represented and what it can tell apart."""
        return {} if self._kdpp is None else dataclasses.asdict(self._kdpp.report)

    # -- the kernel of a population that changes ---------------------------------------------

    def _process(self, k: int, rows: Rows) -> KDPP:
        """Return the k-DPP over `rows`, decomposed again if they changed, or k is too large."""
        exact = self.kernel == "exact" or (
            self.kernel == "auto" and len(self._roster) <= LARGEST_EXACT
        )
        enough = exact or 2 * k <= self._landmark_count
        if self._kdpp is None or not enough or not np.array_equal(rows, self._rows):
            self._kdpp = self._exact(k, rows) if exact else self._low_rank(k, rows)
            self._rows = rows
        elif self._kdpp.k != k:
            self._kdpp = self._kdpp.resized(k)
        return self._kdpp

    def _exact(self, k: int, rows: Rows) -> KDPP:
        everyone = self._population()
        profiles = self._roster[Need.PROFILE.value]
        if everyone is not None:
            # Where too few are trusted, others can be drawn as well.
            everyone = np.union1d(everyone, rows)
            profiles, rows = profiles[everyone], np.searchsorted(everyone, rows)
        return KDPP.from_profiles(
            profiles, k, available=None if len(rows) == len(profiles) else rows
        )

    def _low_rank(self, k: int, rows: Rows) -> KDPP:
        everyone = self._population()
        landmarks = self._fitted_landmarks(k, everyone)
        features = self._roster[_FEATURES]
        if self._gram is None:
            self._gram = gram(features if everyone is None else features[everyone])
        drawable = features if len(rows) == len(features) else features[rows]
        return KDPP.from_features(drawable, landmarks, k, population_gram=self._gram)

    def _fitted_landmarks(self, k: int, everyone: Rows | None) -> Landmarks:
        """Keep the landmarks while they describe the population; else choose new ones."""
        count = max(self.rank, 2 * k)
        kept = self._landmarks
        if (
            kept is None
            or self._landmark_count < count
            or kept.drifted(self._roster[_FEATURES], self._reach)
        ):
            self._landmark_count = count
            profiles = self._roster[Need.PROFILE.value]
            kept = self._landmarks = Landmarks.fit(
                profiles if everyone is None else profiles[everyone], count
            )
            self._roster.drop(_FEATURES)
            self._roster.define(_FEATURES, 0.0, (kept.width,))
            self._featurise(np.arange(len(self._roster)))
            self._reach = 0.0
        return kept

    def _featurise(self, rows: Rows) -> None:
        if self._landmarks is None:
            return
        profiles = self._roster[Need.PROFILE.value]
        newcomers = profiles if len(rows) == len(profiles) else profiles[rows]
        self._roster.put(_FEATURES, rows, self._landmarks.features(newcomers))
        self._reach = max(self._reach, self._landmarks.reach(newcomers))
        self._gram = None

    def _joined(self, rows: Rows) -> None:
        super()._joined(rows)
        self._kdpp = None
        self._featurise(rows)

    def _told(self, need: Need, rows: Rows) -> None:
        super()._told(need, rows)
        if need is Need.PROFILE:
            self._kdpp = None
            self._featurise(rows)

    def _left(self) -> None:
        super()._left()
        self._kdpp = self._gram = None

    def _forget(self) -> None:
        super()._forget()
        self._kdpp = self._gram = self._landmarks = None
        self._reach = 0.0

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the roster and the landmarks."""
        saved = super().state()
        if self._landmarks is not None:
            arrays = self._landmarks.to_arrays()
            arrays |= {"count": np.asarray(self._landmark_count), "reach": np.asarray(self._reach)}
            saved |= {f"{_SAVED}{name}": values for name, values in arrays.items()}
        return saved

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue with the same clients and the same landmarks."""
        super().restore(state)
        saved = {k.removeprefix(_SAVED): v for k, v in state.items() if k.startswith(_SAVED)}
        if saved:
            self._landmarks = Landmarks.from_arrays(saved)
            self._landmark_count = int(saved["count"])
            self._reach = float(saved["reach"])
