"""Drawing from a k-DPP whose kernel is given by its eigenvalues and eigenvectors.

A k-DPP is a mixture of determinantal *projection* processes (Kulesza and Taskar, 2011, 2012): first
k eigenvectors are chosen, with probability proportional to the product of their eigenvalues; then
k items, one after the other, each with probability proportional to the squared length of its row
(in the chosen eigenvectors) that is orthogonal to the rows taken so far.

The second phase is done by rejection. The squared rows are a mixture of k known distributions over
the items, one a column, so an item is proposed from a random column and accepted with the share of
its squared row that is orthogonal. That is exact, takes about k·(1 + 1/2 + ... + 1/k) proposals,
and touches only the proposed items: the time of a draw grows with log C, not with C.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

# Items whose squared entries are summed into one step of a column's distribution. The table is
# this much smaller than the eigenvectors; the step is scanned when a proposal falls into it.
_BLOCK = 64

# Numbers that one batch of draws holds at a time (4 MiB): larger ones leave the cache.
_BATCH_NUMBERS = 2**19

# Orthogonal shares below this are rounding. Accepting one has this probability at most.
_SMALLEST_SHARE = 1e-14

# With orthonormal eigenvectors a round of proposals completes a draw with probability above 1/3,
# so this many rounds without completing it mean that rounding has left nothing to accept.
_ROUNDS = 200


@dataclasses.dataclass(frozen=True, eq=False)
class Spectrum:
    """The positive part of a kernel's eigen-decomposition.

    Parameters
    ----------
    log_values : ndarray of shape [r]
        Logarithms of the eigenvalues, in descending order.
    columns : ndarray of shape [r, C]
        The eigenvectors, one a row, so that each is contiguous in memory.
    """

    log_values: Floats
    columns: Floats

    @classmethod
    def from_singular(cls, values: Floats, columns: Floats, tolerance: float) -> Spectrum:
        """Return the spectrum of SᵀS from the singular values of S.

        Parameters
        ----------
        values : ndarray of shape [r]
            Not negative, in any order.
        columns : ndarray of shape [r, C]
            The right singular vectors, one a row.
        tolerance : float
            Values up to this share of the largest count as zero.
        """
        order = np.argsort(values)[::-1]
        order = order[values[order] > tolerance * values.max()]
        return cls(2 * np.log(values[order]), np.ascontiguousarray(columns[order]))

    @property
    def rank(self) -> int:
        """How many eigenvalues are positive."""
        return int(self.columns.shape[0])

    @property
    def items(self) -> int:
        """How many items there are."""
        return int(self.columns.shape[1])

    @functools.cached_property
    def steps(self) -> Floats:
        """Each column's distribution function at the end of every block, all columns in one row.

        Column j's values lie in (j, j + 1], so that one sorted search serves all columns.
        """
        starts = np.arange(0, self.items, _BLOCK)
        steps = np.empty((self.rank, starts.size))
        for j, column in enumerate(self.columns):
            np.cumsum(np.add.reduceat(column * column, starts), out=steps[j])
        steps /= steps[:, -1:]
        steps += np.arange(self.rank)[:, None]
        return steps.ravel()

    def propose(self, columns: Indices, rng: np.random.Generator) -> Indices:
        """Return an item for each entry of `columns`, drawn from that column's squares.

        Parameters
        ----------
        columns : ndarray of any shape

        Returns
        -------
        ndarray of the same shape
        """
        wanted = columns.ravel()
        blocks = -(-self.items // _BLOCK)
        found = np.searchsorted(self.steps, wanted + rng.random(wanted.size), side="right")
        # The sum may round up into the next column.
        block = np.minimum(found - wanted * blocks, blocks - 1)
        items = block[:, None] * _BLOCK + np.arange(_BLOCK)
        inside = items < self.items
        np.minimum(items, self.items - 1, out=items)
        squares = self.columns[wanted[:, None], items]
        squares *= squares
        squares *= inside
        np.cumsum(squares, axis=1, out=squares)
        target = rng.random(wanted.size) * squares[:, -1]
        offset = np.minimum((squares <= target[:, None]).sum(axis=1), _BLOCK - 1)
        result: Indices = items[np.arange(wanted.size), offset].reshape(columns.shape)
        return result


def choose_eigenvectors(table: Floats, rng: np.random.Generator, draws: int) -> Indices:
    """Draw which k eigenvectors to use, with probability proportional to their product.

    Given that l more are needed among the first n, the largest index taken is at most j with
    probability e_l(λ_1..λ_j) / e_l(λ_1..λ_n): one sorted search a degree, for all draws at once.

    Parameters
    ----------
    table : ndarray of shape [k + 1, r + 1]
        `log_elementary` of the eigenvalues.
    rng : numpy.random.Generator
    draws : int

    Returns
    -------
    ndarray of shape [draws, k]
        Ascending indices below r.
    """
    k, last = table.shape[0] - 1, table.shape[1] - 1
    chosen = np.empty((draws, k), dtype=np.int64)
    among = np.full(draws, last)
    uniform = np.log1p(-rng.random((k, draws)))
    for l in range(k, 0, -1):  # noqa: E741
        among = np.searchsorted(table[l], uniform[l - 1] + table[l, among]) - 1
        chosen[:, l - 1] = among
    return chosen


def choose_items(spectrum: Spectrum, chosen: Indices, rng: np.random.Generator) -> Indices:
    """Draw k items from the projection process of each row of chosen eigenvectors.

    Parameters
    ----------
    spectrum : Spectrum
    chosen : ndarray of shape [n, k]
        Indices of eigenvectors, distinct in each row.
    rng : numpy.random.Generator

    Returns
    -------
    ndarray of shape [n, k]
        Distinct items in each row, in the order in which they were taken.
    """
    draws, k = chosen.shape
    if k == 0:
        return np.empty((draws, 0), dtype=np.int64)
    expected = k * (np.log(k) + 1)
    proposals = int(min(1.25 * expected + 8, max(48, 2 * k)))
    batch = max(1, _BATCH_NUMBERS // (proposals * max(k, _BLOCK)))
    return np.concatenate(
        [
            _choose_batch(spectrum, chosen[start : start + batch], proposals, rng)
            for start in range(0, max(draws, 1), batch)
        ]
    )


def _choose_batch(
    spectrum: Spectrum, chosen: Indices, proposals: int, rng: np.random.Generator
) -> Indices:
    draws, k = chosen.shape
    taken = np.full((draws, k), -1, dtype=np.int64)
    basis = np.zeros((draws, k, k))
    count = np.zeros(draws, dtype=np.int64)
    active = np.arange(draws)
    for _ in range(_ROUNDS):
        if active.size == 0:
            return taken
        _take_round(spectrum, chosen, proposals, rng, active, taken, basis, count)
        active = active[count[active] < k]
    for draw in active:
        finish_by_scan(spectrum.columns[chosen[draw]], taken[draw], int(count[draw]), rng)
    return taken


def _take_round(
    spectrum: Spectrum,
    chosen: Indices,
    proposals: int,
    rng: np.random.Generator,
    active: Indices,
    taken: Indices,
    basis: Floats,
    count: Indices,
) -> None:
    """Propose a batch of items to every active draw and let each take what it accepts.

    `taken`, `basis` (the orthonormalised rows taken) and `count` are updated in place.
    """
    k = chosen.shape[1]
    column = np.take_along_axis(chosen[active], rng.integers(k, size=(active.size, proposals)), 1)
    items = spectrum.propose(column, rng)
    rows = spectrum.columns[chosen[active][:, None, :], items[:, :, None]]
    left = np.einsum("npk,npk->np", rows, rows)
    threshold = np.maximum(rng.random(left.shape), _SMALLEST_SHARE) * left
    if count[active].any():
        along = rows @ basis[active].transpose(0, 2, 1)
        left -= np.einsum("npk,npk->np", along, along)
        left[(items[:, :, None] == taken[active][:, None, :]).any(axis=2)] = 0.0
    # Proposals count in their order: once one is accepted, those before it are spent.
    live = np.ones(left.shape, dtype=bool)
    order = np.arange(proposals)
    here = np.arange(active.size)
    while here.size:
        accepted = live[here] & (left[here] > threshold[here])
        first = accepted.argmax(axis=1)
        found = accepted[np.arange(here.size), first]
        here, first = here[found], first[found]
        if here.size == 0:
            return
        draw = active[here]
        row = rows[here, first]
        # Once leaves an error of the size of what was removed; twice is enough.
        for _ in range(2):
            within = np.einsum("nij,nj->ni", basis[draw], row)
            row = row - np.einsum("nij,ni->nj", basis[draw], within)
        row /= np.sqrt(np.einsum("nk,nk->n", row, row))[:, None]
        item = items[here, first]
        basis[draw, count[draw]] = row
        taken[draw, count[draw]] = item
        count[draw] += 1
        along = np.einsum("npk,nk->np", rows[here], row)
        left[here] -= along * along
        live[here] &= (order > first[:, None]) & (items[here] != item[:, None])
        here = here[count[draw] < k]


def finish_by_scan(columns: Floats, taken: Indices, count: int, rng: np.random.Generator) -> None:
    """Complete one draw by looking at every item, whatever rounding has done to the residuals.

    Parameters
    ----------
    columns : ndarray of shape [k, C]
        The chosen eigenvectors.
    taken : ndarray of shape [k]
        The first `count` entries are items; the others are filled in place.
    count : int
    rng : numpy.random.Generator
    """
    k = taken.size
    for position in range(count, k):
        residual = columns.copy()
        if position:
            basis = np.linalg.qr(columns[:, taken[:position]])[0]
            for _ in range(2):
                residual -= basis @ (basis.T @ residual)
        weight = np.einsum("kc,kc->c", residual, residual)
        weight[taken[:position]] = 0.0
        if not weight.sum() > 0:
            weight = np.ones_like(weight)
            weight[taken[:position]] = 0.0
        taken[position] = rng.choice(weight.size, p=weight / weight.sum())
