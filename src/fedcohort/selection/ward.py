"""One client from each of k Ward clusters of the profiles.

J. H. Ward: Hierarchical Grouping to Optimize an Objective Function. Journal of the American
Statistical Association 58, 1963. As a selector, the plain form of clustered sampling on profiles.

Rule: Ward linkage on the profiles of the available clients; the tree is cut into exactly k
clusters by undoing its last k − 1 merges; one client is drawn uniformly from each. Weights
n_c / Σ n_c.
"""

import dataclasses

import numpy as np
import scipy  # its parts are loaded when they are used
from numpy.typing import NDArray

from fedcohort.dpp.kernels import Frame
from fedcohort.errors import InvalidInputError
from fedcohort.selection.base import Cohort, Floats, Need
from fedcohort.selection.guard import ProfileSelector
from fedcohort.selection.registry import register
from fedcohort.selection.roster import Rows

# The distances of all pairs take 1.6 GB at this population.
LARGEST = 20_000


@register("ward")
@dataclasses.dataclass(kw_only=True, eq=False)
class Ward(ProfileSelector):
    """Draw one client from each cluster of similar profiles.

    Parameters
    ----------
    guard : {"off", "profiles", "updates"}
        Who is left out: nobody; clients whose profiles look forged; or also those whose training
        contradicts their profile.
    outputs : int, optional
        Length of the output layer's bias, for the guard ``updates``: that of the simulated model,
        or 10.

    Examples
    --------
    >>> profiles = np.random.default_rng(1).normal(size=(100, 16))
    >>> len(Ward().fit(profiles).select(10, rng=np.random.default_rng(0)))
    10
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._tree: Floats | None = None
        self._rows: Rows = np.empty(0, np.intp)

    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        labels = cut(self._linked(rows), k)
        order = rng.permutation(len(rows))
        # The first of each cluster in a random order is a uniform draw from it.
        _, first = np.unique(labels[order], return_index=True)
        return self._cohort(rows[order[first]])

    def _linked(self, rows: Rows) -> Floats:
        """Return the tree over `rows`, built again only if they have changed."""
        if len(rows) > LARGEST:
            raise InvalidInputError(
                f"Selector 'ward' compares every two of {len(rows)} available clients, which is"
                f" too much above {LARGEST}: use 'kcenter' or 'dp3s'."
            )
        if self._tree is None or not np.array_equal(rows, self._rows):
            profiles = self._roster[Need.PROFILE.value][rows]
            # Framed, since squares of huge profiles would overflow and those of tiny ones vanish.
            profiles = Frame.around(profiles, profiles)(profiles)
            linkage = scipy.cluster.hierarchy.linkage
            self._tree = linkage(profiles, "ward") if len(rows) > 1 else np.empty((0, 4))
            self._rows = rows
        return self._tree

    def _doubt(self) -> None:
        super()._doubt()
        self._tree = None

    def _forget(self) -> None:
        super()._forget()
        self._tree = None


def cut(tree: Floats, clusters: int) -> NDArray[np.int32]:
    """Return the cluster, 0..clusters-1, of each leaf once the last merges are undone.

    SciPy's ``fcluster`` makes fewer clusters than asked for where merges tie in height; this does
    not.

    Parameters
    ----------
    tree : float64 [n - 1, 4]
        SciPy's linkage matrix of n leaves.
    clusters : int
        How many, at most n.

    Returns
    -------
    int32 [n]
    """
    leaves = len(tree) + 1
    kept = tree[: leaves - clusters, :2].astype(np.intp)
    nodes = leaves + len(kept)
    parents = np.repeat(np.arange(leaves, nodes), 2)
    edges = scipy.sparse.coo_array(
        (np.ones(len(parents)), (kept.ravel(), parents)), shape=(nodes, nodes)
    )
    labels: NDArray[np.int32] = scipy.sparse.csgraph.connected_components(edges, directed=False)[1]
    return labels[:leaves]
