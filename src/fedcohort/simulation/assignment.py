"""What the clients of one run do in a round: who is asked, chosen, and answers in time."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.randomness import generator
from fedcohort.selection import Cohort, Need
from fedcohort.selection.asking import questions_of
from fedcohort.simulation.capacity import affordable_passes, completed_passes
from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.device_updates import finite_rows
from fedcohort.simulation.member import FLOAT_BYTES, Member
from fedcohort.simulation.system import attend, over_selected

Answer = Callable[[Need, NDArray[np.int64]], Any]
"""Has clients measure what a selector asked for: (need, ids [m]) → values [m, ...]."""


@dataclasses.dataclass(frozen=True)
class Assignment:
    """The distinct clients of one run's cohort, and what each is to do in this round.

    Attributes
    ----------
    cohort : Cohort
        As the selector chose it.
    ids, weights : int64 [m], float64 [m]
        Each client once, and its weight in the average.
    passes : float64 [m]
        Passes over its data; 0 if it does not answer.
    capacity, durations : float64 [m], optional
        Passes it could afford, and how long it takes.
    elapsed : float
        Simulated time of the round.
    bytes_down, bytes_up : int
        Sent to clients and by clients.
    seconds : float
        Wall-clock time of the selection.
    """

    cohort: Cohort
    ids: NDArray[np.int64]
    weights: NDArray[np.float64]
    passes: NDArray[np.float64]
    capacity: NDArray[np.float64] | None = None
    durations: NDArray[np.float64] | None = None
    elapsed: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0

    @property
    def working(self) -> NDArray[np.bool_]:
        """Who trains and answers in time: bool [m]."""
        return self.passes > 0


def asked_and_lost(config: RunConfig, clients: int) -> tuple[int, float]:
    """Return how many clients a run asks per round, and which share of them it expects to lose."""
    asked = over_selected(min(config.cohort, clients), config.over_selection, clients)
    answering = min(asked * (1 - config.dropout), config.cohort)
    return asked, 1 - answering / asked


def assign(member: Member, round_: int, answer: Answer) -> Assignment:
    """Let a run's selector ask and choose, and see who answers in time."""
    began = time.perf_counter()
    config, selector = member.config, member.selector
    when = f"in round {round_}"
    clients = len(member.federation)
    there = member.availability.of(config.seed, round_, clients)
    present = selector.eligible(np.arange(clients) if there is None else there)
    # None is everyone, whom no selector need look up one by one.
    among = None if len(present) == clients else present
    wanted = min(config.cohort, len(present))
    asked = over_selected(wanted, config.over_selection, len(present))
    rng = generator(config.seed, "selection", round_)
    receivers: list[NDArray[np.int64]] = []
    up = 0
    if round_ == 1:
        receivers += [np.arange(clients)] if member.profile_bytes else []
        up += (member.profile_bytes + member.label_bytes) * clients
    cohort = Cohort(np.empty(0, np.int64), np.empty(0))
    if asked:
        with member.calling(when):
            questions = questions_of(selector, asked, among, rng=rng)
        for need, ids in questions:
            answers = answer(need, ids)
            # A model that diverges has no loss: a server takes no answer that is no number.
            finite = finite_rows(answers)
            if finite.any():
                with member.calling(when):
                    selector.tell(need, ids[finite], answers if finite.all() else answers[finite])
            receivers.append(ids)
            up += FLOAT_BYTES * math.prod(answers.shape)
        with member.calling(when):
            cohort = selector.select(asked, among, rng=rng)
    ids, place = np.unique(cohort.ids, return_inverse=True)
    weights = np.bincount(place, cohort.weights, minlength=len(ids)).astype(np.float64)
    passes, capacity = np.full(len(ids), config.epochs), None
    due = passes
    if cohort.work is not None:
        tasks = np.empty((len(ids), 2))
        tasks[place] = cohort.work
        capacity = affordable_passes(config.seed, round_, ids)
        passes = completed_passes(tasks, capacity)
        # Whoever cannot do even the easy task is missed when that was due.
        due = np.where(passes > 0, passes, tasks[:, 0])
    attendance = attend(
        config.seed,
        round_,
        ids,
        due * member.federation.sizes[ids] / member.mean_size,
        wanted,
        able=passes > 0,
        spread=config.speed_spread,
        dropout=config.dropout,
        deadline=config.deadline,
    )
    passes = np.where(attendance.answered, passes, 0.0)
    reached = np.unique(np.concatenate([*receivers, ids])) if receivers else ids
    loss = FLOAT_BYTES if member.reports_loss else 0
    return Assignment(
        cohort,
        ids,
        weights,
        passes,
        capacity,
        attendance.durations,
        attendance.elapsed,
        bytes_down=member.model_bytes * len(reached),
        bytes_up=up + (member.model_bytes + loss) * int((passes > 0).sum()),
        seconds=time.perf_counter() - began,
    )
