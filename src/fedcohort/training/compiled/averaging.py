"""The server's step by the compiled kernels: each local model is read once."""

import ctypes

import numpy as np
import torch
from torch import Tensor

from fedcohort.training.compiled.program import pointers_to
from fedcohort.training.local import Parameters


def average_compiled(
    library: ctypes.CDLL,
    stacked: Parameters,
    local: Parameters,
    slots: Tensor,
    weights: Tensor,
    trusted: Tensor,
) -> tuple[Parameters, Tensor]:
    """Do what `fedcohort.training.aggregation.aggregate` does, with the kernels in `library`."""
    before = [values.contiguous() for values in stacked.values()]
    after = [local[name].contiguous() for name in stacked]
    moved = [np.empty(values.shape, np.float32) for values in before]
    sizes = (ctypes.c_int64 * len(before))(*(v.numel() // len(v) for v in before))
    targets = (ctypes.c_void_p * len(moved))(*(values.ctypes.data for values in moved))
    used = trusted.clone()
    runs, width = slots.shape
    library.average(
        ctypes.c_int64(len(before)),
        sizes,
        pointers_to(before),
        pointers_to(after),
        targets,
        *(ctypes.c_int64(count) for count in (runs, len(trusted), width)),
        *(ctypes.c_void_p(t.data_ptr()) for t in (slots.contiguous(), weights.contiguous(), used)),
    )
    return dict(zip(stacked, map(torch.from_numpy, moved), strict=True)), used
