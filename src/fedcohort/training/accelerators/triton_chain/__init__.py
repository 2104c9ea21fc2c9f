"""Chains of layers on an NVIDIA GPU: all client models at once, in Triton kernels of our own."""

import functools
import importlib.util

import torch
from torch import nn

from fedcohort.training.aggregation import aggregate
from fedcohort.training.batched import client_losses_batched
from fedcohort.training.layers import is_chain, read_chain
from fedcohort.training.trainer import Trainer


def takes(model: nn.Module, input_shape: tuple[int, ...], device: torch.device) -> bool:
    """Take any chain of layers on a GPU, where there is Triton."""
    there = device.type == "cuda" and importlib.util.find_spec("triton") is not None
    return there and is_chain(model, input_shape)


def trainer(model: nn.Module, input_shape: tuple[int, ...], precision: str) -> Trainer:
    """Return the trainer, which multiplies in `precision` (float32 as TF32)."""
    # Imported only where it is used, since Triton comes with it.
    from fedcohort.training.accelerators.triton_chain.averaging import move_fused
    from fedcohort.training.accelerators.triton_chain.models import FusedModels

    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    fused = FusedModels(read_chain(model, input_shape), dtype)
    return Trainer(
        "Triton chain",
        fused.train,
        fused.evaluate,
        client_losses_batched,
        functools.partial(aggregate, move=move_fused),
    )
