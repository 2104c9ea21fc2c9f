"""Drawing from a k-DPP whose kernel is given by its eigenvalues and eigenvectors.

A k-DPP is a mixture of determinantal *projection* processes (Kulesza and Taskar, 2011, 2012): first
k eigenvectors are chosen, with probability proportional to the product of their eigenvalues; then
k items, one after the other, each with probability proportional to the squared length of that part
of its row (in the chosen eigenvectors) which is orthogonal to the rows taken so far.

The second phase is done by rejection. The squared rows are a mixture of k known distributions over
the items, one per column, so an item is proposed from a random column and accepted with the share
of its squared row that is orthogonal. That is exact, takes about k·(1 + 1/2 + ... + 1/k) proposals,
and touches only the proposed items: the time of a draw grows with log C, not with C.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from numpy.typing import NDArray

from fedcohort.dpp.eigenvectors import BLOCK, DenseEigenvectors, Eigenvectors

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

# Numbers that one batch of draws looks at per round (2 MiB, to stay in the cache).
_BATCH_NUMBERS = 2**18

# Orthogonal shares below this are rounding. Accepting one has this probability at most.
_SMALLEST_SHARE = 1e-14

# With orthonormal eigenvectors every round completes a draw with fair probability, so this many
# rounds without completing it mean that rounding has left nothing to accept.
_ROUNDS = 200


@dataclasses.dataclass(frozen=True, eq=False)
class Spectrum:
    """The positive part of a kernel's eigen-decomposition.

    Parameters
    ----------
    log_values : ndarray of shape [rank]
        Logarithms of the eigenvalues, in descending order.
    vectors : Eigenvectors
        The eigenvectors, in the same order.
    """

    log_values: Floats
    vectors: Eigenvectors

    @classmethod
    def empty(cls, items: int) -> Spectrum:
        """Return the spectrum of a kernel that is zero, over `items` items."""
        return cls(np.empty(0), DenseEigenvectors(np.empty((0, items))))

    @classmethod
    def from_singular(cls, values: Floats, vectors: Floats, tolerance: float) -> Spectrum:
        """Return the spectrum of SᵀS from the singular values [r] of S, in any order.

        `vectors` [r, C] are the right singular vectors. Values up to `tolerance` times the largest
        count as zero.
        """
        order = np.argsort(values)[::-1]
        order = order[values[order] > tolerance * values.max()]
        kept = np.ascontiguousarray(vectors[order])
        return cls(2 * np.log(values[order]), DenseEigenvectors(kept))

    @property
    def rank(self) -> int:
        """How many eigenvalues are positive."""
        return self.vectors.rank

    @property
    def items(self) -> int:
        """How many items there are."""
        return self.vectors.items

    @functools.cached_property
    def _steps(self) -> Floats:
        """Each eigenvector's distribution function over blocks of items, all in one row.

        Those of eigenvector j lie in (j, j + 1], so that one sorted search serves all.
        """
        steps = self.vectors.block_sums()
        np.cumsum(steps, axis=1, out=steps)
        steps /= steps[:, -1:]
        steps += np.arange(self.rank)[:, None]
        return steps.ravel()

    def propose(self, vectors: Indices, rng: np.random.Generator) -> Indices:
        """Return one item for each of the eigenvectors [m], drawn from its squared entries: [m]."""
        blocks = -(-self.items // BLOCK)
        uniform = rng.random((2, vectors.size))
        found = self._steps.searchsorted(vectors + uniform[0], side="right")
        # The sum may round up into the next eigenvector.
        block = np.minimum(found - vectors * blocks, blocks - 1)
        items = block[:, None] * BLOCK + np.arange(BLOCK)
        outside = items >= self.items
        items[outside] = self.items - 1
        squares = self.vectors.entries(items, vectors[:, None])[:, :, 0]
        squares *= squares
        squares[outside] = 0.0
        np.cumsum(squares, axis=1, out=squares)
        passed = squares <= (uniform[1] * squares[:, -1])[:, None]
        offset = np.minimum(passed.sum(axis=1), BLOCK - 1)
        result: Indices = items[np.arange(vectors.size), offset]
        return result


def choose_eigenvectors(table: Floats, rng: np.random.Generator, draws: int) -> Indices:
    """Draw which k eigenvectors to use, with probability proportional to their product.

    Given that l more are needed among the first n, the largest index taken is at most j with
    probability e_l(λ_1..λ_j) / e_l(λ_1..λ_n): one sorted search per degree, for all draws at once.
    `table` [k + 1, r + 1] is `log_elementary` of the eigenvalues; the result is ascending indices
    below r, [draws, k].
    """
    k, last = table.shape[0] - 1, table.shape[1] - 1
    chosen = np.empty((draws, k), dtype=np.int64)
    among = np.full(draws, last)
    uniform = np.log1p(-rng.random((k, draws)))
    for l in range(k, 0, -1):  # noqa: E741
        degree = table[l]
        among = degree.searchsorted(uniform[l - 1] + degree[among]) - 1
        chosen[:, l - 1] = among
    return chosen


def choose_items(spectrum: Spectrum, chosen: Indices, rng: np.random.Generator) -> Indices:
    """Draw k items from the projection process of each row of `chosen` eigenvectors [n, k].

    The items [n, k] of a row are distinct, in the order in which they were taken.
    """
    draws, k = chosen.shape
    if k == 0:
        return np.empty((draws, 0), dtype=np.int64)
    proposals = proposals_per_round(k)
    batch = max(1, _BATCH_NUMBERS // (proposals * max(k, BLOCK)))
    taken = np.empty((draws, k), dtype=np.int64)
    for start in range(0, draws, batch):
        part = slice(start, start + batch)
        taken[part] = _Draws(spectrum, chosen[part]).complete(proposals, rng)
    return taken


def proposals_per_round(k: int) -> int:
    """Return how many items to propose to a draw before looking whether it is complete.

    k(1 + 1/2 + ... + 1/k) are needed on average. Where k is large, fewer at a time are faster: each
    is compared with every row that is taken after it was proposed.
    """
    return int(min(1.25 * k * (math.log(k) + 1) + 8, max(48, 2 * k)))


class _Draws:
    """A batch of draws that are made side by side, each at its own pace."""

    def __init__(self, spectrum: Spectrum, chosen: Indices) -> None:
        draws, k = chosen.shape
        self.spectrum = spectrum
        self.chosen = chosen
        self.taken = np.full((draws, k), -1, dtype=np.int64)
        self.count = np.zeros(draws, dtype=np.int64)
        # The orthonormalised rows of the items taken.
        self.basis = np.zeros((draws, k, k))

    def complete(self, proposals: int, rng: np.random.Generator) -> Indices:
        """Return the items taken once every draw has k of them."""
        k = self.chosen.shape[1]
        active = np.arange(len(self.chosen))
        for _ in range(_ROUNDS):
            self._round(active, proposals, rng)
            active = active[self.count[active] < k]
            if active.size == 0:
                return self.taken
        everything = np.arange(self.spectrum.items)[None, :]
        for draw in active:
            rows = self.spectrum.vectors.entries(everything, self.chosen[draw][None, :])[0]
            finish_by_scan(rows, self.taken[draw], int(self.count[draw]), rng)
        return self.taken

    def _round(self, active: Indices, proposals: int, rng: np.random.Generator) -> None:
        """Propose items to the active draws and let each take those that it accepts."""
        k = self.chosen.shape[1]
        chosen = self.chosen[active]
        mixture = rng.integers(k, size=(active.size, proposals))
        vectors = chosen[np.arange(active.size)[:, None], mixture]
        items = self.spectrum.propose(vectors.ravel(), rng)
        items = items.reshape(mixture.shape)
        rows = self.spectrum.vectors.entries(items, chosen)
        left = np.einsum("npk,npk->np", rows, rows)
        threshold = np.maximum(rng.random(left.shape), _SMALLEST_SHARE) * left
        if self.count[active].any():
            along = rows @ self.basis[active].transpose(0, 2, 1)
            left -= np.einsum("npk,npk->np", along, along)
            left[(items[:, :, None] == self.taken[active][:, None, :]).any(axis=2)] = 0.0
        if active.size == 1:
            self._accept_alone(int(active[0]), items[0], rows[0], left[0], threshold[0])
            return
        here = np.arange(active.size)
        start = 0
        while start < proposals:
            accepted = left[:, start:][here] > threshold[:, start:][here]
            first = accepted.argmax(axis=1)
            found = accepted[np.arange(here.size), first]
            here, first = here[found], first[found] + start
            if here.size == 0:
                return
            draw, item = active[here], items[here, first]
            row = self._take(draw, item, rows[here, first])
            # Proposals count in their order. Those before an accepted one were rejected and remain
            # so, since what is left of a row only shrinks.
            start = int(first.min()) + 1
            later = rows[:, start:]
            if here.size < active.size:
                later = later[here]
            along = (later @ row[:, :, None])[:, :, 0]
            rest = left[here, start:] - along * along
            rest[items[here, start:] == item[:, None]] = 0.0
            left[here, start:] = rest
            here = here[self.count[draw] < k]

    def _accept_alone(
        self, draw: int, items: Indices, rows: Floats, left: Floats, threshold: Floats
    ) -> None:
        """Let one draw take what it accepts, as `_round` does for several, several times as fast.

        The proposals' components along the rows taken here are those of a Cholesky decomposition of
        their inner products, of which a step is one product of a vector with a small matrix.
        """
        k, count = self.chosen.shape[1], int(self.count[draw])
        before = rows @ self.basis[draw, :count].T
        inner = rows @ rows.T - before @ before.T
        along = np.empty((k - count, items.size))
        taken: list[int] = []
        while len(taken) < k - count:
            accepted = left > threshold
            first = int(accepted.argmax())
            if not accepted[first]:
                break
            step = inner[first] - along[: len(taken), first] @ along[: len(taken)]
            step /= math.sqrt(left[first])
            along[len(taken)] = step
            taken.append(first)
            left -= step * step
            # Proposals count in their order: those before the accepted one remain rejected, since
            # what is left of a row only shrinks.
            left[: first + 1] = 0.0
            left[items == items[first]] = 0.0
        self.taken[draw, count : count + len(taken)] = items[taken]
        self.count[draw] = count + len(taken)
        if count + len(taken) < k:
            # Orthonormal, and orthogonal to what was there, for the proposals to come.
            spanned = np.concatenate([self.basis[draw, :count], rows[taken]])
            self.basis[draw, : len(spanned)] = np.linalg.qr(spanned.T)[0].T

    def _take(self, draw: Indices, item: Indices, row: Floats) -> Floats:
        """Record an item for each draw and return its row, orthonormalised."""
        position = self.count[draw]
        basis = self.basis[draw, : position.max()]
        # Once leaves an error of the size of what was removed; twice is enough.
        for _ in range(2):
            within = basis @ row[:, :, None]
            row = row - (within.transpose(0, 2, 1) @ basis)[:, 0]
        row /= np.sqrt(np.einsum("nk,nk->n", row, row))[:, None]
        self.basis[draw, position] = row
        self.taken[draw, position] = item
        self.count[draw] += 1
        return row


def finish_by_scan(rows: Floats, taken: Indices, count: int, rng: np.random.Generator) -> None:
    """Complete one draw by looking at every item, whatever rounding has done to the rows.

    `rows` [C, k] are every item's entries in the chosen eigenvectors. Of `taken` [k] the first
    `count` are items; the others are filled in place.
    """
    for position in range(count, taken.size):
        basis = np.linalg.qr(rows[taken[:position]].T)[0]
        residual = rows
        for _ in range(2):
            residual = residual - residual @ basis @ basis.T
        weight = np.einsum("ck,ck->c", residual, residual)
        weight[taken[:position]] = 0.0
        if not weight.any():
            weight[:] = 1.0
            weight[taken[:position]] = 0.0
        taken[position] = rng.choice(weight.size, p=weight / weight.sum())
