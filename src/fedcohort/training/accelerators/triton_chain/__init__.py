"""Chains of layers on an NVIDIA GPU: all client models at once, in Triton kernels of our own."""

import functools
import importlib.util

import torch

from fedcohort.training.aggregation import aggregate
from fedcohort.training.batched import client_losses_batched
from fedcohort.training.layers import is_chain, read_chain
from fedcohort.training.problem import LocalProblem
from fedcohort.training.trainer import Trainer


def takes(problem: LocalProblem) -> bool:
    """Take plain SGD on classes of any chain of layers on a GPU, where there is Triton."""
    there = problem.device.type == "cuda" and importlib.util.find_spec("triton") is not None
    return there and problem.is_plain and is_chain(problem.model, problem.input_shape)


def trainer(problem: LocalProblem, precision: str) -> Trainer:
    """Return the trainer, which multiplies in `precision` (float32 as TF32)."""
    # Imported only where it is used, since Triton comes with it.
    from fedcohort.training.accelerators.triton_chain.averaging import move_fused
    from fedcohort.training.accelerators.triton_chain.models import FusedModels

    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    fused = FusedModels(read_chain(problem.model, problem.input_shape), dtype)
    return Trainer(
        "Triton chain",
        fused.train,
        fused.evaluate,
        client_losses_batched,
        functools.partial(aggregate, move=move_fused),
    )
