"""One round of a real federation: who was asked, what came back, and what the selector hears."""

import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedcohort.selection import Cohort, Outcome


@dataclasses.dataclass(frozen=True)
class RoundSummary:
    """What happened in one round, by client name.

    Attributes
    ----------
    round : int
        Its number, from 1.
    cohort : tuple of str
        Who was asked to train, one entry per place.
    trained : tuple of str
        Whose update was used.
    left_out : dict of str
        Why the others' was not.

    Examples
    --------
    >>> RoundSummary(1, ("a", "b"), ("a",), {"b": "sent nothing in time"}).trained
    ('a',)
    """

    round: int
    cohort: tuple[str, ...]
    trained: tuple[str, ...]
    left_out: Mapping[str, str]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ClientUpdate:
    """A usable result of one client.

    Attributes
    ----------
    seconds : float
        From asking for it to hearing it.
    loss : float, optional
        The loss that the selector hears, if the client told it.
    change : float32 [d], optional
        Local minus global parameters, if the selector needs them.
    """

    seconds: float
    loss: float | None
    change: NDArray[np.float32] | None


@dataclasses.dataclass(eq=False, kw_only=True)
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
    log : logging.Logger
        Where the engine logs.
    failures : dict of str
        Why clients are left out.
    """

    number: int
    cohort: Cohort
    name: Callable[[int], str]
    log: logging.Logger
    failures: dict[int, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began = time.monotonic()

    def weight(self, client: int) -> float:
        """Return a client's share of the average, of all its places together."""
        return float(self.cohort.weights[self.cohort.ids == client].sum())

    @property
    def by_size(self) -> bool:
        """Whether every client weighs in proportion to its size."""
        return self.cohort.sized and len(np.unique(self.cohort.ids)) == len(self.cohort)

    def can_average(self, used: Collection[int], least: int) -> bool:
        """Tell whether these clients, at least so many, make a model; if not, say why."""
        if len(used) < least:
            self.log.warning(
                "Round %d is dropped: %d usable updates, and it needs %d.",
                self.number,
                len(used),
                least,
            )
        elif not any(map(self.weight, used)):
            # A selector may give weights of 0: matched weights are, now and then.
            self.log.warning(
                "Round %d is dropped: its usable updates (%d) all weigh 0.", self.number, len(used)
            )
        else:
            return True
        return False

    def fail(self, client: int, reason: str) -> None:
        """Leave a client out, and say why."""
        self.failures[client] = reason
        self.log.warning(
            "Client %r is left out of round %d: %s.", self.name(client), self.number, reason
        )

    def outcome(self, asked: Sequence[int], used: Mapping[int, ClientUpdate]) -> Outcome:
        """Return what the selector hears of the clients that were asked."""
        found = [used.get(client) for client in asked]
        return Outcome(
            np.array(asked, np.int64),
            np.array([update is not None for update in found], np.bool_),
            np.array([np.nan if u is None or u.loss is None else u.loss for u in found]),
            changes_of(found),
            np.array([np.nan if u is None else u.seconds for u in found]),
        )

    def summary(self, trained: Sequence[int]) -> RoundSummary:
        """Return what happened, by name, if these clients trained."""
        return RoundSummary(
            self.number,
            tuple(self.name(client) for client in self.cohort.ids.tolist()),
            tuple(self.name(client) for client in trained),
            {self.name(client): reason for client, reason in self.failures.items()},
        )


def changes_of(updates: Sequence[ClientUpdate | None]) -> NDArray[np.float32] | None:
    """Return what training changed [m, d], NaN where nothing came."""
    changes = [None if update is None else update.change for update in updates]
    known = [change for change in changes if change is not None]
    if not known:
        return None
    nothing = np.full(len(known[0]), np.nan, np.float32)
    return np.stack([nothing if change is None else change for change in changes])
