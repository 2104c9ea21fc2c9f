"""Clustered sampling by similarity of updates: the paper's baseline "Cluster".

Y. Fraboni, R. Vidal, L. Kameni, M. Lorenzi: Clustered Sampling: Low-Variance and Improved
Representativity for Clients Selection in Federated Learning. ICML 2021, Algorithm 2.

Rule: before each round, the angle between the last updates (local minus global model) of every two
clients, 0 where one of them has not trained yet; Ward linkage on the rows of that matrix, as in
the authors' code; the tree is cut into the maximal subtrees whose share of the data is at most
1/k. The k heaviest become k sampling distributions; the other clients are shuffled and poured
into the room that is left, split where needed, until each distribution holds exactly 1/k of the
data. One client is drawn from each distribution, so a client can be drawn twice; every draw
weighs 1/k, which makes the average unbiased.

The other distances are the squared length and the sum of absolute values of the difference of two
updates, and that of a client that has not trained is 0.
"""

import dataclasses

import numpy as np
import scipy  # its parts are loaded when they are used
from numpy.typing import NDArray

from fedcohort.parameters import OneOf, parameter
from fedcohort.selection.base import Cohort, Floats, Need
from fedcohort.selection.registry import register
from fedcohort.selection.roster import Rows
from fedcohort.selection.update_products import UpdateSelector

# Shares are sums of float fractions: two that differ by less than this are the same share.
_TOLERANCE = 1e-9


@register("clustered")
@dataclasses.dataclass(kw_only=True, eq=False)
class Clustered(UpdateSelector):
    """Draw one client from each of k clusters of similar updates.

    Parameters
    ----------
    distance : {"angle", "l2", "l1"}
        How far two updates are apart; the paper's experiments use the angle. As in the authors'
        code, L2 is squared.

    Examples
    --------
    >>> len(Clustered().fit(sizes=np.full(100, 20.0)).select(10, rng=np.random.default_rng(0)))
    10
    """

    distance: str = parameter("angle", OneOf("angle", "l2", "l1"))

    repeats = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distance != "angle":
            # 1 did not square L2, and took clients that had not trained for equal to all others.
            self.revision = 2  # type: ignore[misc]
        self.only_products = self.distance != "l1"  # type: ignore[misc]

    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        sizes = self._roster["size"][rows]
        distributions = sampling_distributions(
            self._distances(rows), sizes / sizes.sum(), k, rng=rng
        )
        drawn = [rng.choice(len(rows), p=weights / weights.sum()) for weights in distributions]
        return self._cohort(rows[drawn], np.full(k, 1 / k))

    def _distances(self, rows: Rows) -> Floats:
        """Return the distances [m, m] between the updates of `rows`."""
        if not self._known().any():
            return np.zeros((len(rows), len(rows)))
        if self.distance == "l1":
            updates = np.nan_to_num(self._roster[Need.UPDATE.value][rows])
            metric = scipy.spatial.distance
            return metric.squareform(metric.pdist(updates, "cityblock"))
        gram = self._inner_products()[np.ix_(rows, rows)]
        if self.distance == "angle":
            return _angles(gram)
        squares = np.diag(gram)
        return np.maximum(squares[:, None] + squares[None] - 2 * gram, 0.0)


def _angles(gram: Floats) -> Floats:
    """Return angles from inner products; 0 where one of the two is 0."""
    squares = np.diag(gram)
    norms = np.sqrt(squares[:, None] * squares[None])
    cosines = np.divide(gram, norms, out=np.ones_like(gram), where=norms > 0)
    np.fill_diagonal(cosines, 1.0)
    angles: Floats = np.arccos(np.clip(cosines, -1.0, 1.0))
    return angles


def sampling_distributions(
    distances: Floats, shares: Floats, k: int, *, rng: np.random.Generator
) -> Floats:
    """Return k distributions over n clients that each hold 1/k of the data.

    Parameters
    ----------
    distances : float64 [n, n]
        How far two clients' updates are apart.
    shares : float64 [n]
        Each client's share of all data; they sum to 1.
    k : int
        Cohort size.
    rng : numpy.random.Generator
        Shuffles the clients that are poured.

    Returns
    -------
    float64 [k, n]
        Rows sum to 1, column c to k · shares[c].
    """
    demand = k * shares
    # A client with more than 1/k of the data fills whole distributions by itself first.
    alone = np.floor(demand + _TOLERANCE).astype(int)
    rest = np.maximum(demand - alone, 0.0)
    rest[rest < _TOLERANCE] = 0.0
    own = np.eye(len(shares))[np.repeat(np.arange(len(shares)), alone)]
    places = k - len(own)
    if places == 0:
        return own
    groups = sorted(_maximal_subtrees(distances, rest), key=lambda members: -rest[members].sum())
    distributions = np.zeros((places, len(shares)))
    for row, members in zip(distributions, groups, strict=False):
        row[members] = rest[members]
    others = [client for members in groups[places:] for client in members]
    _pour(distributions, rng.permutation(others).astype(int), rest)
    return np.concatenate([own, distributions])


def _maximal_subtrees(distances: Floats, mass: Floats) -> list[list[int]]:
    """Cut the Ward tree into the largest subtrees whose mass is at most 1."""
    leaves = len(distances)
    if leaves == 1:
        return [[0]]
    # Node i < leaves is client i; node leaves + j is the j-th merge, of the two children[j].
    tree = scipy.cluster.hierarchy.linkage(scipy.spatial.distance.pdist(distances), "ward")
    children = tree[:, :2].astype(int).tolist()
    masses = mass.tolist()
    for left, right in children:
        masses.append(masses[left] + masses[right])

    def members(node: int) -> list[int]:
        found, todo = [], [node]
        while todo:
            node = todo.pop()
            if node < leaves:
                found.append(node)
            else:
                todo += reversed(children[node - leaves])
        return found

    groups, stack = [], [len(masses) - 1]
    while stack:
        node = stack.pop()
        if masses[node] <= 1 + _TOLERANCE or node < leaves:
            groups.append(members(node))
        else:
            stack += children[node - leaves]
    return groups


def _pour(distributions: Floats, clients: NDArray[np.int_], mass: Floats) -> None:
    """Fill every distribution up to 1 with the clients' mass, in order, splitting where needed."""
    place = 0
    for client in clients:
        left = mass[client]
        while left > _TOLERANCE and place < len(distributions):
            room = 1 - distributions[place].sum()
            poured = min(left, max(room, 0.0))
            distributions[place, client] += poured
            left -= poured
            if room - poured <= _TOLERANCE:
                place += 1
