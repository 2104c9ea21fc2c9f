"""Two ways to hold the eigenvectors of a kernel.

Exact kernels have a full matrix of them. Those of a low-rank kernel are linear combinations of the
clients' features, and are kept that way: at a million clients, writing them out would double the
memory and take most of the time of a join.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedcohort.dpp.kernels import row_blocks

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

# Consecutive clients that share one step of a distribution function. The steps take this much less
# memory than the entries; the clients of a step are looked at when a proposal falls into it.
BLOCK = 16


@dataclasses.dataclass(frozen=True, eq=False)
class DenseEigenvectors:
    """Eigenvectors written out.

    Parameters
    ----------
    vectors : ndarray of shape [rank, C]
        One per row, so that each is contiguous in memory.
    """

    vectors: Floats

    @property
    def rank(self) -> int:
        """How many vectors there are."""
        return int(self.vectors.shape[0])

    @property
    def items(self) -> int:
        """How many clients there are, C."""
        return int(self.vectors.shape[1])

    def entries(self, items: Indices, vectors: Indices) -> Floats:
        """Return entries [n, p, q] for items [n, p] and vectors [n, q]."""
        return self.vectors[vectors[:, None, :], items[:, :, None]]

    def block_sums(self) -> Floats:
        """Return the sums of squared entries over each block of clients, [rank, blocks]."""
        starts = np.arange(0, self.items, BLOCK)
        sums = np.empty((self.rank, starts.size))
        for j, vector in enumerate(self.vectors):
            sums[j] = np.add.reduceat(vector * vector, starts)
        return sums

    def weighted_squares(self, weights: Floats) -> Floats:
        """Return Σ_j weights_j v_j² for each client, shape [C]."""
        result: Floats = np.einsum("j,jc,jc->c", weights, self.vectors, self.vectors)
        return result


@dataclasses.dataclass(frozen=True, eq=False)
class FactoredEigenvectors:
    """Eigenvectors as combinations of features.

    Parameters
    ----------
    features : ndarray of shape [C, r]
    mixing : ndarray of shape [r, rank]
        Eigenvector j is ``features @ mixing[:, j]``.
    """

    features: Floats
    mixing: Floats

    @property
    def rank(self) -> int:
        """How many vectors there are."""
        return int(self.mixing.shape[1])

    @property
    def items(self) -> int:
        """How many clients there are, C."""
        return int(self.features.shape[0])

    def entries(self, items: Indices, vectors: Indices) -> Floats:
        """Return entries [n, p, q] for items [n, p] and vectors [n, q]."""
        result = np.empty((*items.shape, vectors.shape[1]))
        for part in row_blocks(len(items), items.shape[1] * max(self.features.shape[1], 1)):
            mixing = np.moveaxis(self.mixing[:, vectors[part]], 0, 1)
            np.matmul(self.features[items[part]], mixing, out=result[part])
        return result

    def block_sums(self) -> Floats:
        """Return the sums of squared entries over each block of clients, [rank, blocks]."""
        sums = np.zeros((-(-self.items // BLOCK), self.rank))
        for rows, squares in self._squares():
            whole = len(squares) // BLOCK
            first = rows.start // BLOCK
            parts = squares[: whole * BLOCK].reshape(whole, BLOCK, self.rank)
            parts.sum(axis=1, out=sums[first : first + whole])
            if whole * BLOCK < len(squares):
                sums[first + whole] = squares[whole * BLOCK :].sum(axis=0)
        return np.ascontiguousarray(sums.T)

    def weighted_squares(self, weights: Floats) -> Floats:
        """Return Σ_j weights_j v_j² for each client, shape [C]."""
        result = np.empty(self.items)
        for rows, squares in self._squares():
            result[rows] = squares @ weights
        return result

    def _squares(self) -> Iterator[tuple[slice, Floats]]:
        for rows in row_blocks(self.items, max(self.rank, 1), multiple=BLOCK):
            squares = self.features[rows] @ self.mixing
            squares *= squares
            yield rows, squares


Eigenvectors = DenseEigenvectors | FactoredEigenvectors
