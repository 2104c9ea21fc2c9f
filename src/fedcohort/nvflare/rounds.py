"""One round of an NVFlare workflow: who was asked, what came back, and what the selector hears."""

import dataclasses
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedcohort.adapters.history import RoundSummary
from fedcohort.selection import Cohort, Outcome


@dataclasses.dataclass(frozen=True, eq=False)
class SiteUpdate:
    """A usable result of one client: its loss if it told, what training changed, how long."""

    loss: float | None
    change: NDArray[np.float32]
    seconds: float


@dataclasses.dataclass(eq=False)
class CohortRound:
    """A round in progress.

    Attributes
    ----------
    number : int
        Its number, from 1.
    cohort : Cohort
        What the selector chose.
    name : callable
        ``name(client)``: a client's name.
    """

    number: int
    cohort: Cohort
    name: Callable[[int], str]
    updates: dict[int, SiteUpdate] = dataclasses.field(default_factory=dict)
    failures: dict[int, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self.clients: list[int] = np.unique(self.cohort.ids).tolist()

    def weight(self, client: int) -> float:
        """Return a client's share of the average, of all its places together."""
        return float(self.cohort.weights[self.cohort.ids == client].sum())

    def close(self) -> None:
        """Give up on those that have not answered."""
        for client in self.clients:
            if client not in self.updates:
                self.failures.setdefault(client, "it did not answer in time")

    def outcome(self, *, changes: bool) -> Outcome:
        """Return what the selector hears of the round."""
        found = [self.updates.get(client) for client in self.clients]
        known = next((update.change for update in found if update is not None), None)
        missing = np.full(0 if known is None else len(known), np.nan, np.float32)
        told = changes and known is not None
        return Outcome(
            np.array(self.clients, np.int64),
            np.array([update is not None for update in found], np.bool_),
            np.array([np.nan if u is None or u.loss is None else u.loss for u in found]),
            np.stack([missing if u is None else u.change for u in found]) if told else None,
            np.array([np.nan if u is None else u.seconds for u in found]),
        )

    def summary(self) -> RoundSummary:
        """Return what happened, by name."""
        return RoundSummary(
            self.number,
            tuple(self.name(client) for client in self.cohort.ids.tolist()),
            tuple(self.name(client) for client in sorted(self.updates)),
            {self.name(client): reason for client, reason in self.failures.items()},
        )
