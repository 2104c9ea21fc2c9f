"""How far a study is, and how long the rest will take."""

import dataclasses
from collections.abc import Iterable, Sequence

from fedcohort.simulation.groups import GroupState


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far the unfinished groups are.

    Attributes
    ----------
    done, total : int
        Rounds of single runs.
    note : str
        What is being trained on, or waited for.
    seconds_left : float or None
        How long the rest will take; None until a rate is known.
    """

    done: int
    total: int
    note: str = ""
    seconds_left: float | None = None


def progress_of(groups: Iterable[GroupState], note: str, workers: int) -> Progress:
    """Return the progress of groups that `workers` processes work on."""
    known = list(groups)
    return Progress(
        done=sum(group.runs * group.live for group in known),
        total=sum(group.runs * group.rounds for group in known),
        note=note,
        seconds_left=seconds_left(known, workers),
    )


def seconds_left(
    groups: Sequence[GroupState],
    workers: int = 1,
    timed: Iterable[GroupState] | None = None,
) -> float | None:
    """Return how long the rest of these groups will take; None until some rounds were timed.

    The time a unit of cost took in `timed` (these groups by default), of groups of the same shape
    where there are some, of all others where not; `workers` groups at a time, but never less than
    the longest one needs.
    """
    spent: dict[str, float] = {}
    work: dict[str, float] = {}
    for group in groups if timed is None else timed:
        if group.seconds:
            spent[group.shape] = spent.get(group.shape, 0.0) + group.seconds
            work[group.shape] = work.get(group.shape, 0.0) + group.cost * group.round
    if not sum(work.values()):
        return None
    overall = sum(spent.values()) / sum(work.values())
    rest = [
        (group.rounds - group.live)
        * group.cost
        * (spent[group.shape] / work[group.shape] if group.shape in work else overall)
        for group in groups
    ]
    return max(sum(rest) / max(workers, 1), *rest, 0.0)
