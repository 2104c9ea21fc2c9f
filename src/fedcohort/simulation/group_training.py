"""One lockstep group in training: what a process does between two saves."""

import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fedcohort.simulation.claims import Claim, Entry
from fedcohort.simulation.lockstep import Lockstep
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.scores import FinalScore
from fedcohort.simulation.store import RoundRecord, RunState

SECONDS_BETWEEN_SAVES = 5.0
# Saving takes at most one part in so many of the time.
_SAVING_SHARE = 20


def pause_after(saving: float) -> float:
    """Return how long to train until the next save: the larger a state, the more seldom."""
    return max(SECONDS_BETWEEN_SAVES, _SAVING_SHARE * saving)


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Some rounds of a group.

    Attributes
    ----------
    records : dict of RoundRecord lists
        By run.
    states : list of (round, arrays)
        Where each run stands afterwards; empty when the group is finished.
    models : dict of dict of arrays
        By run, the parameters of its last model; empty until the group is finished.
    scores : dict of FinalScore lists
        By run, how that model does by client and by class, likewise.
    """

    records: dict[str, list[RoundRecord]]
    states: list[RunState]
    models: dict[str, dict[str, NDArray[np.float32]]]
    scores: dict[str, list[FinalScore]]


class GroupTraining:
    """A lockstep group that is trained some seconds at a time, from where its claim resumes."""

    def __init__(self, claim: Claim, materials: Materials, device: torch.device) -> None:
        self._lockstep = Lockstep(claim.configs, materials, device)
        if claim.states:
            self._lockstep.resume(claim.states)

    def entries(self) -> list[Entry]:
        """Return what the store keeps about each run besides its rounds."""
        lockstep = self._lockstep
        return list(zip(lockstep.configs, lockstep.facts(), lockstep.federations(), strict=True))

    def advance(
        self,
        seconds: float,
        *,
        heard: Callable[[int], None] = lambda _: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Chunk:
        """Do at least one round, and more until some seconds are over.

        `heard` hears every round that is done; `stop` is asked after every round, and True comes
        back at once.
        """
        lockstep = self._lockstep
        until = time.monotonic() + seconds
        keys = [config.key for config in lockstep.configs]
        records: dict[str, list[RoundRecord]] = {key: [] for key in keys}
        if lockstep.round == 0:
            _add(records, lockstep.start())
        while True:
            _add(records, lockstep.advance())
            heard(lockstep.round)
            # Asked even when the time is over: a wish to stop may be counting rounds.
            stopping = stop()
            if lockstep.round == lockstep.configs[0].rounds:
                models = {key: lockstep.models(r) for r, key in enumerate(keys)}
                scores = {key: lockstep.final_scores(r) for r, key in enumerate(keys)}
                return Chunk(records, [], models, scores)
            if stopping or time.monotonic() > until:
                return Chunk(records, lockstep.states(), {}, {})


def _add(records: dict[str, list[RoundRecord]], news: Sequence[RoundRecord]) -> None:
    for rows, record in zip(records.values(), news, strict=True):
        rows.append(record)
