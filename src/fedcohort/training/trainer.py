"""What a trainer is.

A trainer trains and measures many models. All of them do the same arithmetic, up to rounding, as
the sequential one, which is the oracle that the others are tested against. A model's result never
depends, not even in its last bit, on what it is trained beside.
"""

import dataclasses
from collections.abc import Callable

from torch import Tensor, nn

from fedcohort.training.aggregation import Aggregate, aggregate
from fedcohort.training.problem import Data, Groups, LocalProblem, Parameters, Trained
from fedcohort.training.task import Task


@dataclasses.dataclass(frozen=True)
class Trainer:
    """A way to train and evaluate models.

    Attributes
    ----------
    name : str
        For reports.
    train : callable
        Does the local trainings of a `LocalProblem`.
    evaluate : callable
        (model, stacked, data, task) → score and mean loss of R global models, float64 [R] each.
    measure : callable
        (model, stacked, data, groups, task) → score and mean loss on each of m `Groups` of
        samples, float64 [m] each.
    aggregate : Aggregate
        How global models are moved towards local ones.
    at_once : int or None
        How many clients are trained at a time, and global models evaluated one by one; None: all.
    """

    name: str
    train: Callable[[LocalProblem], Trained]
    evaluate: Callable[[nn.Module, Parameters, Data, Task], tuple[Tensor, Tensor]]
    measure: Callable[[nn.Module, Parameters, Data, Groups, Task], tuple[Tensor, Tensor]]
    aggregate: Aggregate = aggregate
    at_once: int | None = None
