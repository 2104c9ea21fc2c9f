"""Inner products of clients' last updates, kept up to date as participants send new ones."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.selection.base import Floats, Need, Selector
from fedcohort.selection.columns import sum_over_columns
from fedcohort.selection.roster import Ids, Rows

_PRODUCTS, _UPDATES = "update_products", "updates"


class UpdateTable(Protocol):
    """Keeps clients' updates, and multiplies them, where they come from."""

    def put(self, ids: Ids, updates: Any) -> None:
        """Keep the updates [m, d] of clients `ids` [m]."""

    def get(self, ids: Ids) -> NDArray[np.float32]:
        """Return the updates [m, d] of clients `ids` [m], all of them kept."""

    def products(self, ids: Ids, others: Ids) -> Floats:
        """Return the inner products [m, n] of two lists of clients, 0 where one is unknown."""


@dataclasses.dataclass(kw_only=True, eq=False)
class UpdateSelector(Selector):
    """A selector that compares whole updates with each other."""

    needs = frozenset({Need.UPDATE})
    only_products: ClassVar[bool] = True
    """Whether the rule looks at inner products alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._products: Floats | None = None
        self._table: UpdateTable | None = None

    def keep_updates_in(self, table: UpdateTable) -> None:
        """Let a table keep the updates, which are told in whatever form it takes, from now on."""
        self._table = table

    @property
    def keeps_updates(self) -> bool:
        """Whether it keeps the updates itself."""
        return self._table is None

    def tell(self, need: Need, ids: ArrayLike, values: ArrayLike) -> None:
        """Hear updates; where a table keeps them, the roster marks whose are known."""
        if need is Need.UPDATE and self._table is not None:
            who = np.asarray(ids, np.int64)
            self._table.put(who, values)
            values = np.zeros((len(who), 1), np.float32)
        super().tell(need, ids, values)

    def _known(self) -> NDArray[np.bool_]:
        """Tell whose update is known, [C]."""
        if Need.UPDATE.value not in self._roster:
            return np.zeros(len(self._roster), bool)
        known: NDArray[np.bool_] = ~np.isnan(self._roster[Need.UPDATE.value][:, 0])
        return known

    def _inner_products(self) -> Floats:
        """Return the inner products [C, C] of all updates, 0 where one is unknown."""
        if self._products is None:
            self._products = self._multiply(slice(None))
        return self._products

    def _told(self, need: Need, rows: Rows) -> None:  # noqa: ARG002
        if self._products is None:
            return
        # Only the participants' rows changed: a tenth of the work for a tenth of the clients.
        fresh = self._multiply(rows)
        self._products[rows], self._products[:, rows] = fresh, fresh.T

    def _multiply(self, rows: Rows | slice) -> Floats:
        """Return the inner products [m, C] of the updates of `rows` with all, all finite."""
        if self._table is not None:
            products = self._table.products(self._roster.ids[rows], self._roster.ids)
        else:
            products = _products(self._roster[Need.UPDATE.value], rows)
        largest = float(np.finfo(np.float32).max)
        return np.nan_to_num(products, posinf=largest, neginf=-largest)

    def _joined(self, rows: Rows) -> None:  # noqa: ARG002
        self._products = None

    def _left(self) -> None:
        self._products = None

    def _forget(self) -> None:
        self._products = None

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything that `restore` needs, as plain arrays."""
        found = super().state()
        # Products computed again could differ from the kept ones in their last bits.
        if self._products is not None:
            found[_PRODUCTS] = self._products.copy()
        known = self._roster.ids[self._known()]
        if self._table is not None and len(known):
            found[_UPDATES] = self._table.get(known)
        return found

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from a saved `state`, wherever updates were kept then and are now."""
        super().restore(state)
        if Need.UPDATE.value in self._roster:
            known = self._known()
            kept = self._roster[Need.UPDATE.value][known]
            self._roster.drop(Need.UPDATE.value)
            if known.any():
                self.tell(Need.UPDATE, self._roster.ids[known], state.get(_UPDATES, kept))
        if _PRODUCTS in state:
            self._products = state[_PRODUCTS].copy()


def _products(updates: NDArray[np.floating], rows: Rows | slice) -> Floats:
    """Return the inner products [m, C] of some updates with all [C, d], NaN where one is NaN."""

    def part(columns: slice) -> Floats:
        # Updates of a diverging model may be too large to be multiplied.
        with np.errstate(over="ignore", invalid="ignore"):
            return (updates[rows, columns] @ updates[:, columns].T).astype(np.float64)

    return sum_over_columns(part, updates.shape[1])
