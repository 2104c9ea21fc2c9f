"""Groups in this process, one after the other."""

import dataclasses
import time
from collections.abc import Callable

import torch

from fedcohort.simulation.claims import Claim, ClaimLostError, Claims
from fedcohort.simulation.devices import find_device
from fedcohort.simulation.execution.work import Work, save_chunk
from fedcohort.simulation.group_training import (
    SECONDS_BETWEEN_SAVES,
    GroupTraining,
    pause_after,
)
from fedcohort.simulation.logs import Log, open_logs
from fedcohort.simulation.progress import progress_of

_SECONDS_BETWEEN_LOOKS = 1.0
# How much earlier than a deadline to be done, for what is not measured.
_SLACK = 1.0


def here(work: Work) -> bool:
    """Work on groups in this process until all are finished, by it or by others; an `Executor`."""
    with open_logs(work.logs) as log:
        return _Worker(work, Claims(work.store), find_device(work.device), log).work_on_all()


class _Worker:
    """One process that works on groups."""

    def __init__(self, work: Work, claims: Claims, device: torch.device, log: Log) -> None:
        self._work, self._claims, self._device, self._log = work, claims, device, log
        self._stopping = False
        # Seconds that preparing a group, a save and a round took when they were last done.
        self._preparing = self._saving = self._round = 0.0

    def work_on_all(self) -> bool:
        names = self._work.names
        with self._claims.heartbeat():
            while not self._must_stop(self._preparing + self._round):
                claim = self._claims.claim(names)
                if claim is None:
                    if self._finished():
                        return True
                    self._wait()
                    continue
                try:
                    self._train(claim)
                except ClaimLostError:
                    continue
                finally:
                    self._claims.release(claim)
        return self._finished()

    def _finished(self) -> bool:
        return all(group.done for group in self._claims.groups(self._work.names))

    def _must_stop(self, ahead: float) -> bool:
        """Tell whether to end: on a wish, or because `ahead` seconds and a save are too long."""
        wished = self._work.stop()
        late = time.monotonic() + ahead + self._saving + _SLACK > self._work.deadline
        self._stopping = self._stopping or wished or late
        return self._stopping

    def _wait(self) -> None:
        """Wait a little for other processes to finish their groups, or to die."""
        groups = self._claims.groups(self._work.names)
        holders = sorted({group.holder for group in groups if group.holder})
        self._work.report(progress_of(groups, f"waiting for {', '.join(holders)}", len(holders)))
        time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _train(self, claim: Claim) -> None:
        """Train one group, to its end or until it is time to stop."""
        began = time.monotonic()
        training = GroupTraining(claim, self._work.materials, self._device)
        self._claims.begin(claim, training.entries())
        self._preparing = time.monotonic() - began
        pause = SECONDS_BETWEEN_SAVES
        while True:
            chunk = training.advance(
                pause, heard=self._listener(claim), stop=lambda: self._must_stop(self._round)
            )
            began = time.monotonic()
            save_chunk(self._work, self._claims, claim, chunk, self._log)
            self._saving = time.monotonic() - began
            pause = pause_after(self._saving)
            if not chunk.states or self._stopping:
                return

    def _listener(self, claim: Claim) -> Callable[[int], None]:
        """Return what hears the rounds of a group between two saves."""
        groups = self._claims.groups(self._work.names)
        workers = len({group.holder for group in groups if group.holder})
        place = next(i for i, group in enumerate(groups) if group.name == claim.group)
        last = time.monotonic()

        def heard(round_: int) -> None:
            nonlocal last
            now = time.monotonic()
            self._round, last = now - last, now
            self._claims.reached(claim, round_)
            groups[place] = dataclasses.replace(groups[place], live=round_)
            self._work.report(progress_of(groups, claim.configs[0].dataset, workers))

        return heard
