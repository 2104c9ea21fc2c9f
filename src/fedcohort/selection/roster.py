"""Who is in the federation, and the columns that a selector keeps about each client."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import DuplicateClientError, UnknownClientError

Ids = NDArray[np.int64]
Rows = NDArray[np.intp]


class Roster:
    """A table with one row per client, addressed by client id.

    Rows are dense: a client that leaves is replaced by the last row, so a join or a leave of m
    clients costs O(m) and not O(C). Arrays given by the caller are never written to.
    """

    def __init__(self) -> None:
        self._length = 0
        self._columns: dict[str, NDArray[Any]] = {"id": np.empty(0, np.int64)}
        self._fills: dict[str, NDArray[Any]] = {}
        self._order: tuple[Rows, Ids] | None = None  # rows by id, and those ids

    def __len__(self) -> int:
        return self._length

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a read-only view [C, ...] of one column."""
        view = self._columns[name][: self._length]
        view.flags.writeable = False
        return view

    @property
    def ids(self) -> Ids:
        """The clients' ids [C], in row order."""
        return self["id"]

    def rows(self, ids: Ids) -> Rows:
        """Return the row of each id, or raise `UnknownClientError` for the first stranger."""
        if self._order is None:
            order = np.argsort(self.ids, kind="stable")
            self._order = order, self.ids[order]
        order, ordered = self._order
        places = np.searchsorted(ordered, ids)
        known = places < self._length
        known[known] = ordered[places[known]] == ids[known]
        if not known.all():
            raise UnknownClientError(
                f"Client {ids[~known][0]} is not in this federation: it must join first."
            )
        return order[places]

    def add(self, ids: Ids, columns: dict[str, NDArray[Any]]) -> Rows:
        """Append clients and return their rows; columns not given take their fill value."""
        unique, counts = np.unique(ids, return_counts=True)
        present = np.isin(unique, self.ids)
        if present.any() or (counts > 1).any():
            twice = unique[present | (counts > 1)][0]
            raise DuplicateClientError(
                f"Client {twice} joins twice: let it leave first, or give it another id."
            )
        start, self._length = self._length, self._length + len(ids)
        for name in self._columns:
            self._reserve(name)
        rows = np.arange(start, self._length)
        for name, values in {"id": ids, **columns}.items():
            if start == 0:
                self._columns[name] = _borrowed(values)
            else:
                self.put(name, rows, values)
        self._order = None
        return rows

    def remove(self, ids: Ids) -> None:
        """Let clients go; the last rows move into the holes."""
        rows = self.rows(np.unique(ids))
        left = self._length - len(rows)
        leaving = np.zeros(self._length, bool)
        leaving[rows] = True
        holes = np.flatnonzero(leaving[:left])
        movers = left + np.flatnonzero(~leaving[left:])
        for name in self._columns:
            column = self._own(name)
            column[holes] = column[movers]
            # Whoever joins next takes these rows, and nothing of who had them.
            column[left : self._length] = self._fills.get(name, 0)
        self._length = left
        self._order = None

    def define(self, name: str, fill: Any, shape: tuple[int, ...] = (), dtype: Any = float) -> None:
        """Add a column that is `fill` for every client, now and on joining; no-op if present."""
        if name not in self._columns:
            self._fills[name] = np.full(shape, fill, dtype)
            self._columns[name] = np.full((self._length, *shape), fill, dtype)

    def drop(self, name: str) -> None:
        """Remove a column, if it is there."""
        self._columns.pop(name, None)
        self._fills.pop(name, None)

    def put(self, name: str, rows: Rows, values: NDArray[Any]) -> None:
        """Write `values` into some rows of a column."""
        self._own(name)[rows] = values

    def save(self) -> dict[str, NDArray[Any]]:
        """Return a copy of all columns and of what newcomers get in them."""
        columns = {f"client.{name}": self[name].copy() for name in self._columns}
        return columns | {f"newcomer.{name}": fill for name, fill in self._fills.items()}

    @classmethod
    def load(cls, saved: Mapping[str, NDArray[Any]]) -> Self:
        """Return the roster that was saved."""
        roster = cls()
        for key, values in saved.items():
            kind, _, name = key.partition(".")
            if kind == "client":
                roster._columns[name] = _borrowed(values)
            elif kind == "newcomer":
                roster._fills[name] = values
        roster._length = len(roster._columns["id"])
        return roster

    def _own(self, name: str) -> NDArray[Any]:
        column = self._columns[name]
        if not column.flags.writeable:
            column = self._columns[name] = column.copy()
        return column

    def _reserve(self, name: str) -> None:
        column = self._columns[name]
        if len(column) >= self._length:
            return
        room = max(self._length, len(column) + len(column) // 4)
        grown = np.full((room, *column.shape[1:]), self._fills.get(name, 0), column.dtype)
        grown[: len(column)] = column
        self._columns[name] = grown


def _borrowed(values: NDArray[Any]) -> NDArray[Any]:
    view = np.asarray(values).view()
    view.flags.writeable = False
    return view
