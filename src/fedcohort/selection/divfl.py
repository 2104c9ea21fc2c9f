"""Diverse clients by submodular maximisation: DivFL.

R. Balakrishnan, T. Li, T. Zhou, N. Himayat, V. Smith, J. Bilmes: Diverse Client Selection for
Federated Learning via Submodular Maximization. ICLR 2022.

Rule: g_c is the last known update of client c; everyone's is asked for once, then participants
refresh theirs. The cohort Y should represent everyone: Σ_i min_{c∈Y} ‖g_i − g_c‖, over all
clients i, is made small by stochastic greedy: k times, of a random sample of the clients not yet
chosen, the one is added with which that sum is lowest. The sample has max(k, share · m) of the m
available clients, as in the authors' code, but rounded up. Weights n_c / Σ n_c, or, as the paper
derives them, the data that each chosen client represents.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from fedcohort.parameters import Interval, OneOf, parameter
from fedcohort.selection.base import Cohort, Floats, Need
from fedcohort.selection.registry import register
from fedcohort.selection.roster import Rows
from fedcohort.selection.update_products import UpdateSelector


@register("divfl")
@dataclasses.dataclass(kw_only=True, eq=False)
class DivFL(UpdateSelector):
    """Choose clients whose updates stand for everyone's.

    Parameters
    ----------
    share : float
        Share of the available clients that is looked at for each place; 1 is the plain greedy
        choice, in which only ties are left to chance.
    weights : {"size", "represented"}
        n_c / Σ n_c, or the share of all data held by the clients whose nearest chosen client is c.

    Examples
    --------
    >>> len(DivFL().fit(clients=100).select(10, rng=np.random.default_rng(0)))
    10
    """

    share: float = parameter(0.1, Interval(0, 1, closed="right"))
    weights: str = parameter("size", OneOf("size", "represented"))

    asks_newcomers = Need.UPDATE

    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        distances = self._distances(rows)
        sample = max(k, int(np.ceil(self.share * len(rows))))
        chosen = stochastic_greedy(distances, k, sample, rng=rng)
        if self.weights == "size":
            return self._cohort(rows[chosen])
        nearest = np.argmin(distances[:, chosen], axis=1)
        represented = np.bincount(nearest, self._roster["size"], minlength=k)
        return self._cohort(rows[chosen], represented / represented.sum())

    def _distances(self, rows: Rows) -> Floats:
        """Return how far the updates of all clients are from those of `rows`, [C, m]."""
        known = self._known()
        if not known.any():
            return np.zeros((len(self._roster), len(rows)))
        products = self._inner_products()[np.ix_(known, known)]
        # Around the mean, an average client, which is what an unknown one counts as, is 0.
        means = products.mean(axis=0)
        gram = np.zeros((len(known), len(known)))
        gram[np.ix_(known, known)] = products - means - means[:, None] + means.mean()
        squares = np.diag(gram)
        return np.sqrt(np.maximum(squares[:, None] + squares[rows] - 2 * gram[:, rows], 0.0))


def stochastic_greedy(
    distances: Floats, k: int, sample: int, *, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Choose k columns so that the sum over rows of the least chosen distance is low.

    Parameters
    ----------
    distances : float64 [n, m]
        From everyone that is to be represented to everyone that can be chosen.
    k : int
        How many columns to choose.
    sample : int
        Columns looked at for each place.
    rng : numpy.random.Generator
        Draws the samples, and in their random order breaks ties.

    Returns
    -------
    intp [k]
    """
    nearest = np.full(len(distances), np.inf)
    left = np.arange(distances.shape[1])
    chosen = np.empty(k, np.intp)
    for place in range(k):
        looked_at = rng.choice(left, min(sample, len(left)), replace=False)
        sums = np.minimum(nearest[:, None], distances[:, looked_at]).sum(axis=0)
        best = chosen[place] = looked_at[np.argmin(sums)]
        nearest = np.minimum(nearest, distances[:, best])
        left = left[left != best]
    return chosen
