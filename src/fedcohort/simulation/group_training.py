"""One lockstep group in training: what a process does between two saves."""

import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fedcohort.simulation.claims import Claim, Entry
from fedcohort.simulation.devices import naming_full_memory
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
    seconds : float
        What they took, without what starting took; 0 as long as that cannot be told apart.
    states : list of (round, arrays)
        Where each run stands afterwards; empty when the group is finished.
    models : dict of dict of arrays
        By run, the parameters of its last model; empty until the group is finished.
    scores : dict of FinalScore lists
        By run, how that model does by client and by class, likewise.
    """

    records: dict[str, list[RoundRecord]]
    seconds: float
    states: list[RunState]
    models: dict[str, dict[str, NDArray[np.float32]]]
    scores: dict[str, list[FinalScore]]


class GroupTraining:
    """A lockstep group that is trained some seconds at a time, from where its claim resumes."""

    @naming_full_memory()
    def __init__(self, claim: Claim, materials: Materials, device: torch.device) -> None:
        self._lockstep = Lockstep(claim.configs, materials, device)
        if claim.states:
            self._lockstep.resume(claim.states)
        # Rounds that are not in any chunk's seconds yet.
        self._untimed = 0
        self._started = False

    def entries(self) -> list[Entry]:
        """Return what the store keeps about each run besides its rounds."""
        lockstep = self._lockstep
        return list(zip(lockstep.configs, lockstep.facts(), lockstep.federations(), strict=True))

    @naming_full_memory()
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
        ends: list[float] = []
        keys = [config.key for config in lockstep.configs]
        records: dict[str, list[RoundRecord]] = {key: [] for key in keys}
        if lockstep.round == 0:
            _add(records, lockstep.start())
        began = time.monotonic()
        while True:
            _add(records, lockstep.advance())
            ends.append(time.monotonic())
            heard(lockstep.round)
            # Asked even when the time is over: a wish to stop may be counting rounds.
            stopping = stop()
            if lockstep.round == lockstep.configs[0].rounds:
                models = {key: lockstep.state_dict(r) for r, key in enumerate(keys)}
                scores = {key: lockstep.final_scores(r) for r, key in enumerate(keys)}
                return Chunk(records, self._seconds(began, ends), [], models, scores)
            if stopping or time.monotonic() > until:
                return Chunk(records, self._seconds(began, ends), lockstep.states(), {}, {})

    def _seconds(self, began: float, ends: Sequence[float]) -> float:
        """Return what rounds took that ended at these times.

        The first round after a start also loads, compiles and captures, often for longer than a
        hundred others train: it is counted like those that follow it, when there are some.
        """
        first, self._started = not self._started, True
        self._untimed += len(ends)
        timed = len(ends) - first
        if not timed:
            return 0.0
        pace = (ends[-1] - (ends[0] if first else began)) / timed
        rounds, self._untimed = self._untimed, 0
        return pace * rounds


def _add(records: dict[str, list[RoundRecord]], news: Sequence[RoundRecord]) -> None:
    for rows, record in zip(records.values(), news, strict=True):
        rows.append(record)
