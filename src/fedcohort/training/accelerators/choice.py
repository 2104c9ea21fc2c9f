"""Which trainer is used: a rule, in which nothing is measured."""

import functools
import importlib
import pkgutil
import warnings
from typing import Protocol, cast

import torch
from torch import nn

from fedcohort.errors import FedcohortWarning
from fedcohort.training import accelerators
from fedcohort.training.batched import BATCHED
from fedcohort.training.per_client import PER_CLIENT
from fedcohort.training.trainer import Trainer


class SlowPathWarning(FedcohortWarning):
    """No accelerator takes a model: results stay right, and come more slowly."""


class Accelerator(Protocol):
    """What the package of an accelerator offers."""

    def takes(self, model: nn.Module, input_shape: tuple[int, ...], device: torch.device) -> bool:
        """Tell whether it can train a model on a device, and is worth it."""
        ...

    def trainer(self, model: nn.Module, input_shape: tuple[int, ...], precision: str) -> Trainer:
        """Return the trainer of a model that it takes."""
        ...


def choose_trainer(
    model: nn.Module, input_shape: tuple[int, ...], device: torch.device, precision: str
) -> Trainer:
    """Return the trainer of a model.

    That depends on the model, the device and the precision alone: never on a timing, the load of
    the machine, the number of clients or runs, or what else is trained beside it.

    Parameters
    ----------
    model : nn.Module
        The architecture, on `device`.
    input_shape : tuple of int
        Shape of one input.
    device : torch.device
        Where to train.
    precision : {"float32", "bfloat16"}
        What is multiplied; the weights themselves are float32 always. A CPU has float32 alone.
    """
    for accelerator in _accelerators():
        if accelerator.takes(model, input_shape, device):
            return accelerator.trainer(model, input_shape, precision)
    if device.type == "cpu":
        return PER_CLIENT
    if precision != "float32":
        _warn_of_the_slow_path(model)
    return BATCHED


def _warn_of_the_slow_path(model: nn.Module) -> None:
    warnings.warn(
        f"The model {type(model).__name__} trains in float32 and more slowly: no accelerator takes"
        " it, since it is not a plain chain of convolutions, pools and fully connected layers.",
        SlowPathWarning,
        stacklevel=3,
    )


@functools.cache
def _accelerators() -> tuple[Accelerator, ...]:
    """Import every accelerator there is, in the order of their names."""
    folders = pkgutil.iter_modules(accelerators.__path__, f"{accelerators.__name__}.")
    names = sorted(folder.name for folder in folders if folder.ispkg)
    return tuple(cast(Accelerator, importlib.import_module(name)) for name in names)
