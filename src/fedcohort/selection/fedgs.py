"""Clients far apart in a graph of their data, each chosen equally often: FedGS.

Z. Wang, X. Fan, J. Qi, H. Jin, P. Yang, S. Shen, C. Wang: FedGS: Federated Graph-based Sampling
with Arbitrary Client Availability. AAAI 2023.

Rule: the data-distribution-dependency graph has an edge between clients i and j whose similarity
V_ij, the cosine of their features brought to [0, 1], is above ε; its length is exp(−V_ij² / σ²).
H_ij is the length of the shortest path, divided by the longest there is, which also stands for no
path at all. The cohort Y is the set of k available clients with the highest

    α · (mean of H_ij over the pairs in Y) − Σ_{c∈Y} (2 (v_c − v̄ − k/m) + 1) / (C − 1),

v_c the rounds that client c was chosen in, v̄ their mean over all C clients, m the number of
available ones. The second term is how much the variance of v grows by Y, up to a constant. Weights
n_c / Σ n_c.

Features are what each client sent first: its update of the first model it got, or, with
features="labels", its label counts, which the authors call the oracle.

The authors leave the search to a commercial solver with a time limit of 5 s, and nothing to chance.
Here one client is drawn from those chosen least; from a random cohort with that client, the best
exchange of one of the others is made until none gains.
"""

import dataclasses

import numpy as np
import scipy  # its parts are loaded when they are used

from fedcohort.parameters import Interval, OneOf, parameter
from fedcohort.selection.base import Cohort, Floats, Need, Outcome
from fedcohort.selection.counting import take_back
from fedcohort.selection.registry import register
from fedcohort.selection.roster import Rows
from fedcohort.selection.update_products import UpdateSelector

# Gains below this share of what the clients bring are rounding.
_TOLERANCE = 1e-10
# A length of 0 would be no edge.
_SHORTEST = 1e-300

_CHOSEN = "chosen"


@register("fedgs")
@dataclasses.dataclass(kw_only=True, eq=False)
class FedGS(UpdateSelector):
    """Take clients that are far apart and were not chosen often.

    Parameters
    ----------
    alpha : float
        How much distance counts against equal counts; 0 chooses whoever was chosen least.
    features : {"update", "labels"}
        What the graph is made from; ``labels`` leaks label counts.
    epsilon : float
        Similarities up to this are no edge.
    sigma2 : float
        The σ² of the lengths: the smaller, the shorter the way between similar clients.

    Examples
    --------
    >>> selector = FedGS(features="labels").fit(label_counts=np.repeat(np.eye(10), 2, axis=0))
    >>> len(selector.select(5, rng=np.random.default_rng(0)))
    5
    """

    alpha: float = parameter(0.1, Interval(0))
    features: str = parameter("update", OneOf("update", "labels"))
    epsilon: float = parameter(0.01, Interval(0, 1))
    sigma2: float = parameter(0.1, Interval(0, closed="right"))

    asks_newcomers = Need.UPDATE

    def __post_init__(self) -> None:
        super().__post_init__()
        self._graph: Floats | None = None
        if self.features == "labels":
            # Declarations of the class, which a parameter changes for this selector alone.
            self.needs = frozenset({Need.LABEL_COUNTS})  # type: ignore[misc]
            self.asks_newcomers = None  # type: ignore[misc, assignment]

    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        self._roster.define(_CHOSEN, 0.0)
        counts = self._roster[_CHOSEN]
        growth = 2 * (counts[rows] - counts.mean() - k / len(rows)) + 1
        pairs = self.alpha * 2 / max(k * (k - 1), 1) * self._distances()[np.ix_(rows, rows)]
        first = int(rng.choice(np.flatnonzero(growth == growth.min())))
        chosen = farthest_set(pairs, -growth / max(len(counts) - 1, 1), first, k, rng=rng)
        self._roster.put(_CHOSEN, rows[chosen], counts[rows[chosen]] + 1)
        return self._cohort(rows[chosen])

    def observe(self, outcome: Outcome) -> None:
        """Do not count clients that did not train; the graph stays as clients sent it first."""
        take_back(self._roster, _CHOSEN, outcome)

    def _distances(self) -> Floats:
        """Return the H [C, C] of all clients; 1 to those whose features are unknown."""
        if self._graph is None:
            known, products = self._products_of_features()
            self._graph = 1.0 - np.eye(len(self._roster))
            if len(known) > 1:
                both = np.ix_(known, known)
                self._graph[both] = graph_distances(
                    _cosines(products[both]), self.epsilon, self.sigma2
                )
        return self._graph

    def _products_of_features(self) -> tuple[Rows, Floats]:
        """Return whose features are known, and the inner products [C, C] of all."""
        if self.features == "labels":
            counts = self._roster[Need.LABEL_COUNTS.value]
            return np.arange(len(counts)), counts @ counts.T
        known = np.flatnonzero(self._known())
        return known, self._inner_products() if len(known) else np.empty((0, 0))

    def _joined(self, rows: Rows) -> None:
        super()._joined(rows)
        self._graph = None
        if _CHOSEN in self._roster and len(rows) < len(self._roster):
            # From 0 a newcomer would be chosen in every round until it caught up.
            others = np.delete(self._roster[_CHOSEN], rows)
            self._roster.put(_CHOSEN, rows, np.full(len(rows), others.mean()))

    def _left(self) -> None:
        super()._left()
        self._graph = None

    def _told(self, need: Need, rows: Rows) -> None:
        if need is Need.UPDATE:
            super()._told(need, rows)
        self._graph = None

    def _forget(self) -> None:
        super()._forget()
        self._graph = None


def _cosines(products: Floats) -> Floats:
    """Return the cosines of vectors from their inner products; 0 where one is 0."""
    lengths = np.sqrt(np.diag(products))
    both = lengths[:, None] * lengths
    cosines: Floats = np.divide(products, both, out=np.zeros_like(products), where=both > 0)
    return cosines


def graph_distances(similarities: Floats, epsilon: float, sigma2: float) -> Floats:
    """Return the shortest paths of the data-distribution-dependency graph, the longest being 1.

    Parameters
    ----------
    similarities : float64 [n, n]
        Of any range; the diagonal is not looked at.
    epsilon : float
        Similarities, brought to [0, 1], up to this are no edge.
    sigma2 : float
        The σ² of the lengths exp(−V² / σ²).

    Returns
    -------
    float64 [n, n]
    """
    edges = similarities.copy()
    # The scale includes 0, the diagonal of the authors' matrix.
    np.fill_diagonal(edges, 0.0)
    low, high = edges.min(), edges.max()
    edges = (edges - low) / (high - low) if high > low else np.zeros_like(edges)
    lengths = np.where(edges > epsilon, np.maximum(np.exp(-(edges**2) / sigma2), _SHORTEST), np.inf)
    np.fill_diagonal(lengths, np.inf)
    graph = scipy.sparse.csgraph.csgraph_from_dense(lengths, null_value=np.inf)
    paths: Floats = scipy.sparse.csgraph.shortest_path(graph, method="FW", directed=False)
    reached = np.isfinite(paths)
    longest = paths[reached].max()
    return np.where(reached, paths / longest, 1.0) if longest > 0 else 1.0 - np.eye(len(paths))


def farthest_set(
    pairs: Floats, single: Floats, first: int, k: int, *, rng: np.random.Generator
) -> Rows:
    """Choose k of n so that no exchange of one raises Σ pairs (each once) + Σ single.

    Parameters
    ----------
    pairs : float64 [n, n]
        What two that are chosen together bring; symmetric, 0 on the diagonal.
    single : float64 [n]
        What each brings by itself.
    first : int
        One that is chosen and not exchanged.
    k : int
        How many to choose.
    rng : numpy.random.Generator
        Draws the set to start from, and in its random order breaks ties.

    Returns
    -------
    intp [k]
    """
    order = rng.permutation(np.delete(np.arange(len(single)), first))
    inside, outside = order[: k - 1], order[k - 1 :]
    value = single + pairs[:, first] + pairs[:, inside].sum(axis=1)
    least = _TOLERANCE * np.abs(value).max()
    while len(inside) and len(outside):
        gains = value[outside] - value[inside][:, None] - pairs[np.ix_(inside, outside)]
        place, other = np.unravel_index(np.argmax(gains), gains.shape)
        if gains[place, other] <= least:
            break
        goes, comes = inside[place], outside[other]
        value += pairs[:, comes] - pairs[:, goes]
        inside[place], outside[other] = comes, goes
    return np.append(first, inside)
