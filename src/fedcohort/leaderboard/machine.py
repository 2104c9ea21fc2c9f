"""Whether this machine repeats a published run.

Sums in another order round differently, and training carries the difference on: for some rounds two
machines agree to a sample or two, later their curves wander apart and cross again. Therefore the
first rounds are held to a few samples, and what follows to what rounding was seen to do.
"""

import dataclasses
from typing import Any

import numpy as np

from fedcohort.leaderboard.conditions import Condition
from fedcohort.leaderboard.entries import Entry
from fedcohort.leaderboard.published import Origin

EARLY = 5
EARLY_TOLERANCE = 0.005
MEAN_TOLERANCE = 0.05
# Shares of samples that differ in the last bit are the same.
_ALIKE = 1e-9


@dataclasses.dataclass(frozen=True)
class MachineCheck:
    """A published run beside the same run on this machine.

    Attributes
    ----------
    condition : Condition
        As it was published.
    run : str
        Which run, such as ``fedavg, seed 0``.
    origin, here : Origin
        Where it was published from, and where it was repeated.
    early, mean, largest : float
        Differences of the training score: the largest in the first `EARLY` evaluated rounds, the
        mean over all, and the largest of all.
    rounds, published_rounds : int or None
        To the target.
    """

    condition: Condition
    run: str
    origin: Origin
    here: Origin
    early: float
    mean: float
    largest: float
    rounds: int | None
    published_rounds: int | None

    @property
    def agrees(self) -> bool:
        """Whether what differs can be rounding."""
        return self.early <= EARLY_TOLERANCE and self.mean <= MEAN_TOLERANCE

    def to_json(self) -> dict[str, Any]:
        """Return the check as plain values."""
        return dataclasses.asdict(self) | {
            "condition": self.condition.name,
            "agrees": self.agrees,
        }

    def __str__(self) -> str:
        what = f"{self.run} in {self.condition.name}"
        if self.largest < _ALIKE:
            return f"Check: {what} came out as published, in every round."
        far = (
            f"the training score is off by at most {self.early:.4f} in the first {EARLY} rounds"
            f" evaluated and by {self.mean:.4f} on average ({_rounds(self.rounds)} rounds to the"
            f" target, published {_rounds(self.published_rounds)})"
        )
        if self.agrees:
            return f"Check: {what} came out as published but for rounding: {far}."
        return (
            f"Check: {what} DIFFERS from the published run by more than rounding: {far};"
            f" published from {self.origin}, here from {self.here}. A difference of this size"
            " between rules may come from the machines."
        )


def compare_machines(
    condition: Condition, published: Entry, repeated: Entry, origin: Origin, here: Origin
) -> MachineCheck:
    """Compare a published run with the same run made here; both entries have that seed alone."""
    apart = np.abs(repeated.train - published.train)[0]
    return MachineCheck(
        condition=condition,
        run=f"{published.selector}, seed {published.seeds[0]}",
        origin=origin,
        here=here,
        early=float(apart[:EARLY].max()),
        mean=float(apart.mean()),
        largest=float(apart.max()),
        rounds=repeated.rounds_to_target,
        published_rounds=published.rounds_to_target,
    )


def _rounds(count: int | None) -> str:
    return "never" if count is None else str(count)
