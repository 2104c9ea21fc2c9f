"""The server's step: from local models to the next global ones."""

import torch
from torch import Tensor

from fedcohort.training.local import Parameters


def usable(local: Parameters) -> Tensor:
    """Tell which of M local models are finite throughout: bool [M]."""
    return torch.stack([values.flatten(1).isfinite().all(1) for values in local.values()]).all(0)


def aggregate(
    stacked: Parameters, local: Parameters, slots: Tensor, weights: Tensor, used: Tensor
) -> Parameters:
    """Move each global model by the weighted mean of its clients' updates.

    Parameters
    ----------
    stacked : dict of float32 [R, ...]
        Global models.
    local : dict of float32 [M, ...]
        Local models.
    slots : int64 [R, k]
        The local models of each global one; -1 where there are fewer than k.
    weights : float64 [R, k]
        Aggregation weights; 0 in empty slots.
    used : bool [M]
        Who counts. The others' weight goes to the rest of their cohort, in proportion; a global
        model of which nobody counts stays as it is.
    """
    counted = (slots >= 0) & used[slots.clamp(min=0)]
    intended, present = weights.sum(1), (weights * counted).sum(1)
    scale = torch.where(present > 0, intended / present.clamp(min=1e-300), 0.0)
    mixing = (weights * counted * scale[:, None]).float()
    places = slots.clamp(min=0).T.contiguous()
    moved = {}
    for name, values in stacked.items():
        # What does not count may not even be a number, and 0 times that is not 0.
        finite = torch.where(_like(used, values), local[name], 0.0)
        moved[name] = values.clone()
        # Slot after slot, so that a model's sum does not depend on what it is computed beside.
        for place, share in zip(places, mixing.T, strict=True):
            moved[name].addcmul_(finite[place] - values, _like(share, values))
    return moved


def _like(column: Tensor, values: Tensor) -> Tensor:
    return column.view(-1, *[1] * (values.dim() - 1))
