"""The sizes that clients claim, when they join and when they train, and how much of them counts."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.selection.sizes import GROWTH, LARGEST, bounded_sizes


@dataclasses.dataclass(frozen=True)
class SizeRule:
    """How far a claimed size is believed.

    Attributes
    ----------
    largest : float, optional
        A size counts up to so many times the upper quartile of the others' (see
        `fedcohort.selection.sizes`); None believes every claim.
    growth : float, optional
        A size claimed in training counts up to so many times the one that counted before; None
        believes every claim.
    """

    largest: float | None = LARGEST
    growth: float | None = GROWTH


class SizeLedger:
    """Who claimed which size first, and what of it counts.

    `log` hears once of each client, by its ``name(client)``, whose claim does not count in full.
    """

    def __init__(self, rule: SizeRule, name: Callable[[int], str], log: logging.Logger) -> None:
        self._rule = rule
        self._name = name
        self._log = log
        self._claims: dict[int, float] = {}
        self._counted: dict[int, float] = {}
        self._said: set[int] = set()

    def claim(self, claims: Mapping[int, float]) -> None:
        """Take the first claims of clients."""
        self._claims |= claims
        self._count()
        for client, claimed in self._claims.items():
            counted = self._counted[client]
            if counted < claimed:
                self._say(client, claimed, counted, "largest_size")

    def knows(self, client: int) -> bool:
        """Tell whether a client has claimed a size."""
        return client in self._claims

    def counted(self, clients: Iterable[int]) -> NDArray[np.float64]:
        """Return what counts of the sizes of clients that have claimed one."""
        return np.array([self._counted[client] for client in clients], np.float64)

    def in_training(self, claims: Mapping[int, float]) -> dict[int, float]:
        """Return what counts of the sizes that clients claim with their updates.

        A client that has claimed none before is measured against the others, as on joining.
        """
        fresh = {c: size for c, size in claims.items() if c not in self._claims}
        if fresh:
            self.claim(fresh)
        growth = np.inf if self._rule.growth is None else self._rule.growth
        result: dict[int, float] = {}
        for client, claimed in claims.items():
            limit = self._counted[client] * (1.0 if client in fresh else growth)
            result[client] = min(claimed, limit)
            if claimed > limit and client not in fresh:
                self._say(client, claimed, limit, "size_growth")
        return result

    def remove(self, clients: Iterable[int]) -> None:
        """Forget clients."""
        for client in clients:
            self._claims.pop(client, None)
        self._count()

    def save(self) -> dict[str, NDArray[Any]]:
        """Return the claims as plain arrays."""
        return {
            "client": np.array(list(self._claims), np.int64),
            "size": np.array(list(self._claims.values()), np.float64),
        }

    def load(self, saved: Mapping[str, NDArray[Any]]) -> None:
        """Continue with claims that were saved."""
        self._claims = dict(zip(saved["client"].tolist(), saved["size"].tolist(), strict=True))
        self._count()

    def _count(self) -> None:
        counted = bounded_sizes(np.array(list(self._claims.values())), self._rule.largest)
        self._counted = dict(zip(self._claims, counted.tolist(), strict=True))

    def _say(self, client: int, claimed: float, counted: float, setting: str) -> None:
        if client not in self._said:
            self._said.add(client)
            self._log.warning(
                "Client %r says it holds %g samples, of which %g count: %s=None believes it.",
                self._name(client),
                claimed,
                counted,
                setting,
            )
