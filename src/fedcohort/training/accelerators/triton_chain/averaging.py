"""The server's weighted mean of local models, in one launch a parameter."""

import torch
import triton
from torch import Tensor

from fedcohort.training.accelerators.triton_chain import kernels

_BLOCK = 1024


def move_fused(
    values: Tensor, local: Tensor, places: Tensor, mixing: Tensor, used: Tensor | None
) -> Tensor:
    """Move one parameter of the global models; see `fedcohort.training.aggregation.Move`."""
    del used  # What does not count has weight 0, and is not read.
    before, local = values.contiguous(), local.contiguous()
    after = torch.empty_like(before)
    runs, size = len(before), before[0].numel()
    block = min(_BLOCK, triton.next_power_of_2(size))
    kernels.average[(triton.cdiv(size, block), runs)](
        before,
        local,
        places.contiguous(),
        mixing.contiguous(),
        after,
        places.shape[1],
        SIZE=size,
        BLOCK=block,
    )
    return after
