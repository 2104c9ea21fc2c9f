"""One lockstep group in training: what a process does between two saves."""

import dataclasses
import time
from collections.abc import Callable, Sequence

import torch

from fedcohort.federation import Dataset
from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.engine import Lockstep
from fedcohort.simulation.ledger import Entry
from fedcohort.simulation.store import Checkpoint, RoundRecord


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Some rounds of a group.

    Attributes
    ----------
    records : dict of RoundRecord lists
        By run.
    states : list of (round, arrays)
        Where each run stands afterwards; empty when the group is finished.
    """

    records: dict[str, list[RoundRecord]]
    states: list[Checkpoint]


class GroupTraining:
    """A lockstep group that is trained some seconds at a time.

    Parameters
    ----------
    configs : sequence of RunConfig
        Its runs.
    states : sequence of (round, arrays)
        Where they go on from; empty for the beginning.
    dataset : Dataset
        What they train on.
    device : torch.device
        Where.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        states: Sequence[Checkpoint],
        dataset: Dataset,
        device: torch.device,
    ) -> None:
        self._lockstep = Lockstep(configs, dataset, device)
        if states:
            self._lockstep.restore(states)

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

        Parameters
        ----------
        seconds : float
            When to come back.
        heard : callable
            Hears every round that is done.
        stop : callable
            Asked after every round; True comes back at once.
        """
        lockstep = self._lockstep
        until = time.monotonic() + seconds
        keys = [config.key for config in lockstep.configs]
        records: dict[str, list[RoundRecord]] = {key: [] for key in keys}
        if lockstep.round == 0:
            self._add(records, lockstep.start())
        while True:
            self._add(records, lockstep.advance())
            heard(lockstep.round)
            # Asked even when the time is over: a wish to stop may be counting rounds.
            stopping = stop()
            if lockstep.round == lockstep.configs[0].rounds:
                return Chunk(records, [])
            if stopping or time.monotonic() > until:
                saved = lockstep.checkpoints()
                return Chunk(records, [saved[key] for key in keys])

    @staticmethod
    def _add(records: dict[str, list[RoundRecord]], news: Sequence[RoundRecord]) -> None:
        for rows, record in zip(records.values(), news, strict=True):
            rows.append(record)
