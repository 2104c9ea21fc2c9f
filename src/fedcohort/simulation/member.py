"""One run's place in a lockstep group: its clients, its selector, and what they send."""

import dataclasses
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcohort.federation import Federation
from fedcohort.metrics import gemd_from
from fedcohort.selection import Cohort, Need, Outcome, Selector
from fedcohort.selection.registry import blamed
from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.device_updates import as_told
from fedcohort.simulation.system import Availability

FLOAT_BYTES = 4


@dataclasses.dataclass
class Member:
    """A run that trains in lockstep with others.

    Attributes
    ----------
    place : int
        Of its model among the stacked ones.
    pool_start : int
        Where the samples of its clients begin in the pool of sample indices.
    profiles : float32 [C, Q], optional
        What its clients sent, if its selector needs it.
    model_bytes, profile_bytes, label_bytes : int
        What a client is sent or sends of each; 0 where nobody sends it.
    """

    place: int
    pool_start: int
    config: RunConfig
    federation: Federation
    selector: Selector
    availability: Availability
    profiles: NDArray[np.float32] | None
    model_bytes: int

    def __post_init__(self) -> None:
        counts = self.federation.label_counts.sum(0)
        self._everyone: NDArray[np.float64] = counts / max(counts.sum(), 1)
        self.mean_size = float(self.federation.sizes.mean())
        sent = 0 if self.profiles is None else self.profiles.shape[1]
        told = Need.LABEL_COUNTS in self.selector.needs
        self.profile_bytes = FLOAT_BYTES * sent
        self.label_bytes = FLOAT_BYTES * len(counts) if told else 0
        self.reports_loss = (
            Need.LOSS in self.selector.needs and self.selector.reported_loss is not None
        )

    def gemd(self, cohort: Cohort) -> float | None:
        """Return how far the label mixture that a cohort trains on is from everyone's, if any."""
        if not len(cohort) or not len(self._everyone):
            return None
        counts = self.federation.label_counts[cohort.ids]
        return gemd_from(self._everyone, counts, cohort.weights)

    def calling(self, when: str) -> AbstractContextManager[None]:
        """Say in one sentence what a selector of the user's own raises, and when."""
        failed = f"Selector {self.config.selector!r} fails {when} with seed {self.config.seed}"
        return blamed(type(self.selector.innermost), failed)

    def describe(self) -> dict[str, Any]:
        """Return what the selector says of itself."""
        with self.calling("as it is described"):
            return self.selector.describe()

    def observe(self, round_: int, outcome: Outcome) -> None:
        """Tell the selector what came of a round's cohort."""
        with self.calling(f"in round {round_}"):
            self.selector.observe(outcome)

    def hear(self, round_: int, outcome: Outcome, updates: Tensor, mask: NDArray[np.bool_]) -> None:
        """Tell it what came of a round's cohort, with the updates [n, d] of those in `mask`."""
        if not mask.all():
            known, updates = updates, updates.new_full((len(mask), updates.shape[1]), np.nan)
            updates[torch.from_numpy(mask)] = known
        told = as_told(self.selector, updates)
        self.observe(round_, dataclasses.replace(outcome, updates=told))
