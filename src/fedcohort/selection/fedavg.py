"""Uniform sampling: the selection rule of FedAvg.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: Communication-Efficient Learning
of Deep Networks from Decentralized Data. AISTATS 2017.

Rule: k clients uniformly without replacement; weights n_c / Σ n_c.
"""

import dataclasses

import numpy as np

from fedcohort.selection.base import Cohort, Selector
from fedcohort.selection.registry import register
from fedcohort.selection.roster import Rows


@register("fedavg")
@dataclasses.dataclass(kw_only=True, eq=False)
class FedAvg(Selector):
    """Uniform sampling without replacement; asks nothing of clients.

    Examples
    --------
    >>> FedAvg().fit(clients=100).select(10, rng=np.random.default_rng(0)).ids
    array([77, 81, 58, 47, 25,  3,  1, 29, 17,  7])
    """

    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        return self._cohort(rng.choice(rows, size=k, replace=False))
