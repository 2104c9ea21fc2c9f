"""Diverse cohorts from a k-DPP over profiles: FL-DP³S.

Y. Zhang, C. Xu, H. H. Yang, X. Wang, T. Q. S. Quek: DPP-based Client Selection for Federated
Learning with Non-IID Data. ICASSP 2023.

Rule: every client sends its profile f_c once, the mean output of the initial model's first fully
connected layer. With S⁰_mn = ‖f_m − f_n‖ and S = 1 − (S⁰ − min S⁰) / (max S⁰ − min S⁰), each round
draws k clients from the k-DPP with kernel L = SᵀS: Pr(Y) ∝ det(L_Y). Weights n_c / Σ n_c.
"""

import dataclasses
from typing import Any

import numpy as np

from fedcohort.dpp import KDPP
from fedcohort.selection.base import Cohort, Need, Selector
from fedcohort.selection.registry import register
from fedcohort.selection.roster import Rows


@register("dp3s")
@dataclasses.dataclass(kw_only=True, eq=False)
class DP3S(Selector):
    """Draw clients whose profiles differ."""

    needs = frozenset({Need.PROFILE})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._kdpp: KDPP | None = None
        self._rows: Rows = np.empty(0, np.intp)

    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        return self._cohort(rows[self._process(k, rows).sample(rng)])

    def _process(self, k: int, rows: Rows) -> KDPP:
        """Return the k-DPP over `rows`; the decomposition is kept while nobody comes or goes."""
        if self._kdpp is None or not np.array_equal(rows, self._rows):
            everyone = len(rows) == len(self._roster)
            self._kdpp = KDPP.from_profiles(
                self._roster[Need.PROFILE.value], k, available=None if everyone else rows
            )
            self._rows = rows
        elif self._kdpp.k != k:
            self._kdpp = self._kdpp.resized(k)
        return self._kdpp

    def describe(self) -> dict[str, Any]:
        """Say how the kernel is represented and what it can tell apart."""
        return {} if self._kdpp is None else dataclasses.asdict(self._kdpp.report)

    def _forget(self) -> None:
        self._kdpp = None

    def _joined(self, rows: Rows) -> None:  # noqa: ARG002
        self._forget()

    def _left(self) -> None:
        self._forget()

    def _told(self, need: Need, rows: Rows) -> None:  # noqa: ARG002
        self._forget()
