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
    moved = {name: values.clone() for name, values in stacked.items()}
    # Slot after slot, so that a model's sum does not depend on what it is computed beside.
    for slot in range(slots.shape[1]):
        place = slots[:, slot].clamp(min=0)
        for name, values in stacked.items():
            update = local[name][place].sub_(values).mul_(_like(mixing[:, slot], values))
            moved[name] += torch.where(_like(counted[:, slot], values), update, 0.0)
    return moved


def _like(column: Tensor, values: Tensor) -> Tensor:
    return column.view(-1, *[1] * (values.dim() - 1))
