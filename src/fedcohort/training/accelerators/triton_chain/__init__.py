"""Chains of layers on an NVIDIA GPU: all client models at once, in Triton kernels of our own."""

import functools
import importlib.util

import torch

from fedcohort.training.batched import measure_batched
from fedcohort.training.layers import find_chain
from fedcohort.training.problem import LocalProblem
from fedcohort.training.trainer import Trainer

ANY_MODEL = False


def trainer(problem: LocalProblem, precision: str) -> Trainer | None:
    """Train plain SGD on classes of chains in bfloat16 on a GPU, where there is Triton."""
    there = problem.device.type == "cuda" and importlib.util.find_spec("triton") is not None
    # The CUDA graphs are for float32: these tiles suit bfloat16.
    if not (there and precision == "bfloat16" and problem.is_plain):
        return None
    layers = find_chain(problem.model, problem.input_shape)
    if layers is None:
        return None
    # Imported only where it is used, since Triton comes with it.
    from fedcohort.training.accelerators.triton_chain.models import FusedModels

    fused = FusedModels(layers, torch.bfloat16)
    measure = functools.partial(measure_batched, dtype=torch.bfloat16)
    return Trainer("Triton chain", fused.train, fused.evaluate, measure)
