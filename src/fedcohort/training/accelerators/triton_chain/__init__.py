"""Chains of layers on an NVIDIA GPU: all client models at once, in Triton kernels of our own."""

import functools
import importlib.util

import torch

from fedcohort.training.aggregation import aggregate
from fedcohort.training.batched import measure_batched
from fedcohort.training.layers import is_chain, read_chain
from fedcohort.training.problem import LocalProblem
from fedcohort.training.trainer import Trainer

ANY_MODEL = False


def takes(problem: LocalProblem, precision: str) -> bool:
    """Take plain SGD on classes of chains in bfloat16 on a GPU, where there is Triton."""
    there = problem.device.type == "cuda" and importlib.util.find_spec("triton") is not None
    # In float32 the first convolution's gradient is more than Triton's compiler can lay out.
    there = there and precision == "bfloat16"
    return there and problem.is_plain and is_chain(problem.model, problem.input_shape)


def trainer(problem: LocalProblem, precision: str) -> Trainer:  # noqa: ARG001
    """Return the trainer."""
    # Imported only where it is used, since Triton comes with it.
    from fedcohort.training.accelerators.triton_chain.averaging import move_fused
    from fedcohort.training.accelerators.triton_chain.models import FusedModels

    fused = FusedModels(read_chain(problem.model, problem.input_shape), torch.bfloat16)
    return Trainer(
        "Triton chain",
        fused.train,
        fused.evaluate,
        measure_batched,
        functools.partial(aggregate, move=move_fused),
    )
