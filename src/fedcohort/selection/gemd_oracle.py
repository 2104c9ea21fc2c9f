"""Greedy on the true label counts: what a server could do if clients told their labels.

J. Ma, X. Sun, W. Xia, X. Wang, X. Chen, H. Zhu: Client Selection Based on Label Quantity
Information for Federated Learning. PIMRC 2021.

Rule: the first client is drawn uniformly; then, k − 1 times, the client with which the cohort's
GEMD Σ_j |P_Y(j) − P(j)| is lowest, ties at random. P is the label distribution of all clients, and
P_Y that of the cohort's joint data. Weights n_c / Σ n_c.

This leaks: every client must tell how many samples of each class it holds. It is here as the bound
that selectors without labels are measured against.
"""

import dataclasses

import numpy as np

from fedcohort.selection.base import Cohort, Need, Selector
from fedcohort.selection.registry import register
from fedcohort.selection.roster import Rows


@register("gemd-oracle")
@dataclasses.dataclass(kw_only=True, eq=False)
class GemdOracle(Selector):
    """Add the client that brings the cohort's labels nearest to everyone's; leaks label counts.

    Examples
    --------
    >>> counts = np.eye(10)[np.arange(100) % 10]
    >>> GemdOracle().fit(label_counts=counts).select(10, rng=np.random.default_rng(0)).ids % 10
    array([2, 6, 0, 8, 5, 3, 4, 1, 7, 9])
    """

    needs = frozenset({Need.LABEL_COUNTS})

    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        everyone = self._roster[Need.LABEL_COUNTS.value]
        population = everyone.sum(axis=0)
        target = population / max(population.sum(), 1.0)
        # Looked at in a random order, the first of several minima is a random one of them.
        order = rng.permutation(rows)
        counts = everyone[order]
        left = np.ones(len(order), bool)
        places = [0]
        held = counts[0].copy()
        left[0] = False
        for _ in range(k - 1):
            mixtures = held + counts
            mixtures /= np.maximum(mixtures.sum(axis=1, keepdims=True), 1e-300)
            distances = np.abs(mixtures - target).sum(axis=1)
            best = int(np.argmin(np.where(left, distances, np.inf)))
            places.append(best)
            held += counts[best]
            left[best] = False
        return self._cohort(order[places])
