"""Which trainer is used: a rule, in which nothing is measured."""

import functools
import importlib
import pkgutil
import warnings
from typing import Protocol, cast

from fedcohort.errors import FedcohortWarning
from fedcohort.training import accelerators
from fedcohort.training.batched import BATCHED
from fedcohort.training.per_client import PER_CLIENT
from fedcohort.training.problem import LocalProblem
from fedcohort.training.trainer import Trainer


class SlowPathWarning(FedcohortWarning):
    """No accelerator takes a model: results stay right, and come more slowly."""


class Accelerator(Protocol):
    """What the package of an accelerator offers.

    Attributes
    ----------
    ANY_MODEL : bool
        Whether it is for models of all kinds; those that are for some kind are asked first.
    """

    ANY_MODEL: bool

    def trainer(self, problem: LocalProblem, precision: str) -> Trainer | None:
        """Return the trainer of a model; None if it cannot train it, or is not worth it."""
        ...


def choose_trainer(problem: LocalProblem, precision: str) -> Trainer:
    """Return the trainer of a model; the jobs and global models of the problem are not looked at.

    That depends on the model, the device, the task and the kind of local work alone: never on a
    timing, the load of the machine, the number of clients or runs, or what else is trained beside.
    The precision is what is multiplied; weights are float32 always, and a CPU has float32 alone.
    """
    for accelerator in _accelerators():
        trainer = accelerator.trainer(problem, precision)
        if trainer is not None:
            return trainer
    if problem.device.type == "cpu" or problem.traits.mixes:
        return PER_CLIENT
    if precision != "float32":
        name = type(problem.model).__name__
        said = f"The model {name} trains in float32 and more slowly: no accelerator takes it."
        warnings.warn(said, SlowPathWarning, stacklevel=2)
    return BATCHED


@functools.cache
def _accelerators() -> tuple[Accelerator, ...]:
    """Import every accelerator there is, in the order in which they are asked."""
    folders = pkgutil.iter_modules(accelerators.__path__, f"{accelerators.__name__}.")
    names = sorted(folder.name for folder in folders if folder.ispkg)
    found = [cast(Accelerator, importlib.import_module(name)) for name in names]
    return tuple(sorted(found, key=lambda accelerator: accelerator.ANY_MODEL))
