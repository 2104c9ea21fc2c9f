"""The server's step by the compiled kernels: each local model is read once."""

import ctypes

import numpy as np
import torch
from torch import Tensor

from fedcohort.training.accelerators.c_chain.compiler import call
from fedcohort.training.accelerators.c_chain.layout import pointers_to
from fedcohort.training.problem import Parameters


def average_compiled(
    stacked: Parameters,
    local: Parameters,
    slots: Tensor,
    weights: Tensor,
    trusted: Tensor,
) -> tuple[Parameters, Tensor]:
    """Do what `fedcohort.training.aggregation.aggregate` does, with the compiled kernels."""
    before = [values.contiguous() for values in stacked.values()]
    after = [local[name].contiguous() for name in stacked]
    moved = [torch.from_numpy(np.empty(values.shape, np.float32)) for values in before]
    sizes = (ctypes.c_int64 * len(before))(*(v.numel() // len(v) for v in before))
    used = trusted.clone()
    runs, width = slots.shape
    call(
        "average",
        *(len(before), sizes),
        *(pointers_to(models) for models in (before, after, moved)),
        *(runs, len(trusted), width),
        *(slots.contiguous(), weights.contiguous(), used),
    )
    return dict(zip(stacked, moved, strict=True)), used
