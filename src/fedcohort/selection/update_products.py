"""Inner products of clients' last updates, kept up to date as participants send new ones."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.selection.base import Floats, Need, Selector
from fedcohort.selection.columns import sum_over_columns
from fedcohort.selection.roster import Rows

_STATE = "update_products"


@dataclasses.dataclass(kw_only=True, eq=False)
class UpdateSelector(Selector):
    """A selector that compares whole updates with each other."""

    needs = frozenset({Need.UPDATE})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._products: Floats | None = None

    def _known(self) -> NDArray[np.bool_]:
        """Tell whose update is known, [C]."""
        if Need.UPDATE.value not in self._roster:
            return np.zeros(len(self._roster), bool)
        known: NDArray[np.bool_] = ~np.isnan(self._roster[Need.UPDATE.value][:, 0])
        return known

    def _inner_products(self) -> Floats:
        """Return the inner products [C, C] of all updates, 0 where one is unknown."""
        if self._products is None:
            self._products = _products(self._roster[Need.UPDATE.value], slice(None))
        return self._products

    def _told(self, need: Need, rows: Rows) -> None:  # noqa: ARG002
        if self._products is None:
            return
        # Only the participants' rows changed: a tenth of the work for a tenth of the clients.
        fresh = _products(self._roster[Need.UPDATE.value], rows)
        self._products[rows], self._products[:, rows] = fresh, fresh.T

    def _joined(self, rows: Rows) -> None:  # noqa: ARG002
        self._products = None

    def _left(self) -> None:
        self._products = None

    def _forget(self) -> None:
        self._products = None

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything that `restore` needs, as plain arrays."""
        # Products computed again could differ from the kept ones in their last bits.
        products = {} if self._products is None else {_STATE: self._products.copy()}
        return super().state() | products

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from a saved `state`, as if nothing had happened in between."""
        super().restore(state)
        if _STATE in state:
            self._products = state[_STATE].copy()


def _products(updates: NDArray[np.floating], rows: Rows | slice) -> Floats:
    """Return the inner products [m, C] of some updates with all [C, d], 0 where one is unknown."""

    def part(columns: slice) -> Floats:
        # Updates of a diverging model may be too large to be multiplied.
        with np.errstate(over="ignore", invalid="ignore"):
            return (updates[rows, columns] @ updates[:, columns].T).astype(np.float64)

    largest = float(np.finfo(np.float32).max)
    summed = sum_over_columns(part, updates.shape[1])
    return np.nan_to_num(summed, posinf=largest, neginf=-largest)
