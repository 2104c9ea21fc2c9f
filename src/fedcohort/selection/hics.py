"""Hierarchical clustered sampling by estimated label entropy: HiCS-FL.

H. Chen, H. Vikalo: Heterogeneity-Guided Client Sampling: Towards Fast and Efficient Non-IID
Federated Learning. NeurIPS 2024 (arXiv:2310.00198).

Rule: Δb_c is the change of the output layer's bias in client c's last update, and
H_c = entropy(softmax(Δb_c / T)) estimates how evenly its labels are spread. First every client is
chosen once, in random order. From then on, with the distance

    angle(Δb_i, Δb_j) + λ · |H_i − H_j|

the available clients form M Ward clusters. Each place goes to a cluster m with probability
proportional to exp(γ_t · mean entropy of m), γ_t = γ · max(0, 1 − t / horizon), and in it to a
client with probability proportional to n_c; nobody twice. But where the entropies vary by
`fallback` or more, clients are drawn by clustered sampling (Algorithm 2 of Fraboni et al. 2021)
over the same distances. Models are averaged plainly.

T is half of the root mean square of the candidates' Δb unless given: the authors' 0.001 and 0.0015
are 0.45 and 0.67 of that of their signal, and at another learning rate they say nothing.

The update is the model's parameters flattened in module order, so the output layer's bias is its
last `outputs` numbers; only these are kept. `fallback` is in the authors' code alone, which also
differs from their paper, and from this, in the rest: angles are those of the output layer's weights
and bias, entropies those of the mean change of its weights; Ward runs on the rows of the square
distance matrix; a cluster's clients are drawn uniformly, and the first ones in the order of their
numbers; and where clients are skewed in different degrees it hears only their first update
(`freeze`).
"""

import dataclasses

import numpy as np
import scipy  # its parts are loaded when they are used
from numpy.typing import ArrayLike

from fedcohort.parameters import Interval, OneOf, Optional, parameter
from fedcohort.selection.base import Cohort, Floats, Need
from fedcohort.selection.clustered import sampling_distributions
from fedcohort.selection.counting import RoundSelector
from fedcohort.selection.output_bias import OutputBiasSelector
from fedcohort.selection.registry import register
from fedcohort.selection.roster import Rows
from fedcohort.selection.ward import cut

# What the authors' T is of the root mean square of their signal: see docs/selectors/hics.md.
RELATIVE_TEMPERATURE = 0.5

_TRIED = "tried"


@register("hics")
@dataclasses.dataclass(kw_only=True, eq=False)
class HiCS(RoundSelector, OutputBiasSelector):
    """Prefer clusters of clients whose labels seem evenly spread, less so as training proceeds.

    Parameters
    ----------
    outputs : int, optional
        Length of the output layer's bias, which ends the update: that of the simulated model, or
        10.
    temperature : float, optional
        T; half of the root mean square of Δb if None, whatever the learning rate.
    entropy_weight : float
        λ, how much a difference in entropy counts compared with an angle.
    clusters : int, optional
        M; as many as the cohort has places if None.
    gamma : float
        How strongly a high entropy is preferred at first; 0 ignores it.
    horizon : int
        The round in which that preference has faded.
    fallback : float, optional
        The variance of the entropies from which on clients are drawn by clustered sampling, as in
        the authors' code; never if None.
    freeze : bool
        Whether only the first update of each client is heard.

    Examples
    --------
    >>> len(HiCS(outputs=10).fit(clients=100).select(10, rng=np.random.default_rng(0)))
    10
    """

    temperature: float | None = parameter(None, Optional(Interval(0, closed="neither")))
    entropy_weight: float = parameter(10.0, Interval(0))
    clusters: int | None = parameter(None, Optional(Interval(1, integral=True)))
    gamma: float = parameter(4.0, Interval(0))
    horizon: int = parameter(500, Interval(1, integral=True))
    fallback: float | None = parameter(0.1, Optional(Interval(0)))
    freeze: bool = parameter(False, OneOf(False, True))

    needs = frozenset({Need.UPDATE})
    forgets_updates = True
    # 1 had T = 0.0025, whatever the learning rate, no fallback, and averaged by size.
    revision = 2

    def tell(self, need: Need, ids: ArrayLike, values: ArrayLike) -> None:
        """Hear updates, of which only the output layer's bias is kept."""
        if need is Need.UPDATE and self.freeze and Need.UPDATE.value in self._roster:
            rows = self._roster.rows(np.asarray(ids))
            unheard = np.isnan(self._roster[Need.UPDATE.value][rows, 0])
            ids, values = np.asarray(ids)[unheard], np.asarray(values)[unheard]
        super().tell(need, ids, values)

    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        self._roster.define(_TRIED, False, (), bool)
        tried = self._roster[_TRIED][rows]
        chosen = rng.permutation(rows[~tried])[:k]
        missing = k - len(chosen)
        if missing:
            chosen = np.concatenate([chosen, self._by_cluster(missing, k, rows[tried], rng)])
        self._roster.put(_TRIED, chosen, np.ones(k, bool))
        self._round += 1
        return self._cohort(chosen, np.full(k, 1 / k))

    def _by_cluster(self, count: int, k: int, rows: Rows, rng: np.random.Generator) -> Rows:
        """Draw `count` of `rows`: first a cluster by its entropy, then a client by its size."""
        biases = self._biases(rows)
        entropies = entropy_of(biases, self.temperature or temperature_for(biases))
        distances = _angles(biases) + self.entropy_weight * np.abs(entropies[:, None] - entropies)
        if self.fallback is not None and entropies.var() >= self.fallback:
            return rows[self._clustered(count, distances, self._roster["size"][rows], rng)]
        tree = np.empty((0, 4))
        if len(rows) > 1:
            condensed = scipy.spatial.distance.squareform(distances, checks=False)
            tree = scipy.cluster.hierarchy.linkage(condensed, "ward")
        labels = cut(tree, min(k if self.clusters is None else self.clusters, len(rows)))
        members = np.bincount(labels)
        means = np.bincount(labels, entropies) / members
        preference = self.gamma * max(0.0, 1 - self._round / self.horizon) * means
        sizes = self._roster["size"][rows].copy()
        chosen = np.empty(count, np.intp)
        for place in range(count):
            cluster = rng.choice(
                len(members), p=scipy.special.softmax(np.where(members > 0, preference, -np.inf))
            )
            inside = np.flatnonzero((labels == cluster) & (sizes > 0))
            best = rng.choice(inside, p=sizes[inside] / sizes[inside].sum())
            chosen[place] = best
            sizes[best] = 0.0
            members[cluster] -= 1
        return rows[chosen]

    def _clustered(
        self, count: int, distances: Floats, sizes: Floats, rng: np.random.Generator
    ) -> Rows:
        """Draw one client from each of `count` distributions; nobody twice."""
        chosen: list[int] = []
        for shares in sampling_distributions(distances, sizes / sizes.sum(), count, rng=rng):
            shares[chosen] = 0.0
            if shares.sum() == 0:
                shares = sizes.copy()
                shares[chosen] = 0.0
            chosen.append(int(rng.choice(len(sizes), p=shares / shares.sum())))
        return np.array(chosen, np.intp)

    def _biases(self, rows: Rows) -> Floats:
        """Return Δb [m, outputs]; the average one where none is known."""
        if Need.UPDATE.value not in self._roster:
            return np.zeros((len(rows), 1))
        biases: Floats = self._roster[Need.UPDATE.value][rows].astype(np.float64)
        unknown = np.isnan(biases[:, 0])
        if unknown.any():
            biases[unknown] = 0.0 if unknown.all() else biases[~unknown].mean(axis=0)
        return biases


def entropy_of(biases: Floats, temperature: float) -> Floats:
    """Return the entropy [m], in nats, of the softmax of each row of `biases` [m, N]."""
    # The largest is taken away before dividing, which could overflow.
    with np.errstate(over="ignore"):
        below = (biases - biases.max(axis=1, keepdims=True)) / temperature
    special = scipy.special
    entropies: Floats = special.entr(special.softmax(below, axis=1)).sum(axis=1)
    return entropies


def temperature_for(biases: Floats) -> float:
    """Return half of the root mean square of the changes [m, N]; 1 if nothing changed."""
    largest = float(np.abs(biases).max())
    if largest == 0:
        return 1.0
    # Scaled first, since squares could overflow.
    return RELATIVE_TEMPERATURE * largest * float(np.sqrt(np.mean((biases / largest) ** 2)))


def _angles(vectors: Floats) -> Floats:
    """Return the angles [m, m] between rows, 0 where one of them is 0."""
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    vectors = np.divide(vectors, largest, out=np.zeros_like(vectors), where=largest > 0)
    norms = np.linalg.norm(vectors, axis=1)
    scale = norms[:, None] * norms
    cosines = np.divide(vectors @ vectors.T, scale, out=np.ones_like(scale), where=scale > 0)
    np.fill_diagonal(cosines, 1.0)
    angles: Floats = np.arccos(np.clip(cosines, -1.0, 1.0))
    return angles
