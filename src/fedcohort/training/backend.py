"""Which of the ways to train and evaluate suits a device and a model."""

import dataclasses
import functools
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedcohort.training.evaluation import evaluate
from fedcohort.training.local import Parameters, Trainer, train_batched, train_sequential

Evaluate = Callable[[nn.Module, Parameters, tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]

# On a CPU, batching many small models saves overhead; above this size the convolution kernels
# decide, and they are faster for one model at a time (floating-point operations a sample).
_SMALL_MODEL_FLOPS = 1_000_000


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
    """

    name: str
    train: Trainer
    evaluate: Evaluate


ONE_BY_ONE = Backend("sequential", train_sequential, functools.partial(evaluate, batched=False))
"""The text-book loop, which the others are tested against."""


def choose_backend(
    model: nn.Module, input_shape: tuple[int, ...], device: torch.device, precision: str
) -> Backend:
    """Return the backend for a model whose weights are on `device`.

    Parameters
    ----------
    model : nn.Module
        The architecture; on a CPU its memory layout may change.
    input_shape : tuple of int
        Shape of one input.
    device : torch.device
        Where to train.
    precision : {"float32", "bfloat16"}
        What is multiplied; the weights themselves are float32 always. A CPU has float32 alone.
    """
    if device.type == "cpu":
        return _on_cpu(model, input_shape)
    if precision == "bfloat16":
        fused = _fused(model, input_shape)
        if fused is not None:
            return fused
    return Backend("batched", train_batched, functools.partial(evaluate, batched=True))


def _on_cpu(model: nn.Module, input_shape: tuple[int, ...]) -> Backend:
    if _flops(model, input_shape) <= _SMALL_MODEL_FLOPS:
        return Backend("batched", train_batched, ONE_BY_ONE.evaluate)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return ONE_BY_ONE


def _fused(model: nn.Module, input_shape: tuple[int, ...]) -> Backend | None:
    from fedcohort.training.fused.layers import UnsupportedModelError, recognise

    try:
        layers = recognise(model, input_shape)
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

    return Backend("fused", trainer, score)


def _flops(model: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Count the floating-point operations of one sample's forward pass."""
    one = torch.zeros(1, *input_shape, device=next(model.parameters()).device)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(one)
    return int(counter.get_total_flops())
