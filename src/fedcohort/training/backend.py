"""Which of the ways to train and evaluate suits a device and a model."""

import dataclasses
import functools
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedcohort.training.aggregation import Aggregate, aggregate
from fedcohort.training.choice import Workload, choose_trainer
from fedcohort.training.compiled.averaging import average_compiled
from fedcohort.training.compiled.compiler import kernels
from fedcohort.training.compiled.trainer import Compiled
from fedcohort.training.cpu_evaluation import client_losses_on_cpu, evaluate_on_cpu
from fedcohort.training.evaluation import client_losses, evaluate
from fedcohort.training.local import Parameters, Trainer, train_batched, train_sequential

Evaluate = Callable[[nn.Module, Parameters, tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]
ClientLosses = Callable[[nn.Module, Parameters, tuple[Tensor, Tensor], Tensor, Tensor], Tensor]


class SlowPathWarning(UserWarning):
    """A model or a machine has no fused kernels: results stay right, and come more slowly."""


@dataclasses.dataclass(frozen=True)
class Backend:
    """A way to train and evaluate models.

    Attributes
    ----------
    name : str
        For reports.
    train : Trainer
        Local training.
    evaluate : callable
        (model, stacked, data) → accuracy and mean loss of R global models, float64 [R] each.
    client_losses : callable
        (model, parameters, data, samples, sizes) → a model's mean loss on each client's data, as
        `evaluation.client_losses` gives it.
    aggregate : Aggregate
        How global models are moved towards local ones.
    """

    name: str
    train: Trainer
    evaluate: Evaluate
    client_losses: ClientLosses = client_losses
    aggregate: Aggregate = aggregate


ONE_BY_ONE = Backend("sequential", train_sequential, functools.partial(evaluate, batched=False))
"""The text-book loop, which the others are tested against."""


def choose_backend(
    model: nn.Module, workload: Workload, device: torch.device, precision: str
) -> Backend:
    """Return the backend for a model whose weights are on `device`.

    Parameters
    ----------
    model : nn.Module
        The architecture.
    workload : Workload
        What it will be trained with.
    device : torch.device
        Where to train.
    precision : {"float32", "bfloat16"}
        What is multiplied; the weights themselves are float32 always. A CPU has float32 alone.
    """
    if device.type == "cpu":
        name, trainer = choose_trainer(model, workload)
        average = aggregate if kernels() is None else average_compiled
        if isinstance(trainer, Compiled):
            return Backend(name, trainer, trainer.evaluate, trainer.client_losses, average)
        return Backend(name, trainer, evaluate_on_cpu, client_losses_on_cpu, average)
    if precision == "bfloat16":
        fused = _fused(model, workload.input_shape)
        if fused is not None:
            return fused
    return Backend("batched", train_batched, functools.partial(evaluate, batched=True))


def _fused(model: nn.Module, input_shape: tuple[int, ...]) -> Backend | None:
    from fedcohort.training.fused.layers import UnsupportedModelError, recognise

    try:
        layers = recognise(model, input_shape)
        from fedcohort.training.fused.averaging import move_fused
        from fedcohort.training.fused.trainer import FusedTrainer
    except (UnsupportedModelError, ImportError) as error:
        why = "Triton is missing" if isinstance(error, ImportError) else str(error)
        warnings.warn(
            f"The model {type(model).__name__} trains in float32 and more slowly: there are no"
            f" fused kernels for it, because {why}.",
            SlowPathWarning,
            stacklevel=2,
        )
        return None
    trainer = FusedTrainer(layers, torch.bfloat16)

    def score(
        _: nn.Module, stacked: Parameters, data: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        return trainer.evaluate(stacked, data)

    return Backend("fused", trainer, score, aggregate=functools.partial(aggregate, move=move_fused))
