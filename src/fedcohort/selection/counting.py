"""What several rules count: the rounds, and how often clients were chosen."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.selection.base import Outcome, Selector
from fedcohort.selection.roster import Roster


@dataclasses.dataclass(kw_only=True, eq=False)
class RoundSelector(Selector):
    """A selector whose rule depends on the round; it counts `_round` up when it chooses."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._round = 0

    @property
    def _round_key(self) -> str:
        return f"{type(self).__name__.lower()}.round"

    def _forget(self) -> None:
        # Sizes told anew also lead here, and do not start the rounds again.
        if not len(self._roster):
            self._round = 0

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the roster and the round."""
        return super().state() | {self._round_key: np.asarray(self._round)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue in the same round."""
        super().restore(state)
        self._round = int(state[self._round_key])


def take_back(roster: Roster, name: str, outcome: Outcome) -> None:
    """Take one off a count of choices for clients that were chosen but did not train."""
    roster.define(name, 0.0)
    rows = roster.rows(outcome.ids[~outcome.trained])
    roster.put(name, rows, np.maximum(roster[name][rows] - 1, 0))
