"""From assignments to what trainers and averaging are given."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedcohort.randomness import hashed_keys
from fedcohort.simulation.assignment import Assignment
from fedcohort.simulation.member import Member
from fedcohort.training.problem import Jobs


def order_keys(seed: int, round_: int, clients: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the keys int64 [m] that decide in which order clients visit their samples."""
    return hashed_keys(seed, "data order", round_, clients)


def jobs_of(round_: int, assigned: Iterable[tuple[Member, Assignment]]) -> Jobs:
    """Return the local trainings of some runs' clients that answer, run after run."""
    columns: list[tuple[Any, ...]] = []
    for member, assignment in assigned:
        ids = assignment.ids[assignment.working]
        partition = member.federation.partition
        columns.append(
            (
                np.full(len(ids), member.place),
                member.pool_start + partition.offsets[ids],
                partition.sizes[ids],
                order_keys(member.config.seed, round_, ids),
                assignment.passes[assignment.working],
            )
        )
    return Jobs(*(torch.from_numpy(np.concatenate(c)) for c in zip(*columns, strict=True)))


def slots_of(
    assignments: Sequence[Assignment],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Lay out which jobs belong to which run, and their weights, for averaging: [R, k] each.

    The weights of those who do not answer go to the rest of their cohort, in proportion.
    """
    widest = max(int(assignment.working.sum()) for assignment in assignments)
    slots = np.full((len(assignments), widest), -1)
    weights = np.zeros((len(assignments), widest))
    start = 0
    for row, assignment in enumerate(assignments):
        count = int(assignment.working.sum())
        slots[row, :count] = np.arange(start, start + count)
        own = assignment.weights[assignment.working]
        if count < len(assignment.ids) and own.any():
            own = own * (assignment.weights.sum() / own.sum())
        weights[row, :count] = own
        start += count
    return slots, weights
