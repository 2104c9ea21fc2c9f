"""The server's step: from local models to the next global ones."""

import torch
from torch import Tensor

from fedcohort.training.local import Parameters


def usable(local: Parameters) -> Tensor:
    """Tell which of M local models are finite throughout: bool [M]."""
    return torch.stack([values.flatten(1).isfinite().all(1) for values in local.values()]).all(0)


def aggregate(
    stacked: Parameters, local: Parameters, model: Tensor, weights: Tensor, used: Tensor
) -> Parameters:
    """Move each global model by the weighted mean of its clients' updates.

    Parameters
    ----------
    stacked : dict of float32 [R, ...]
        Global models.
    local : dict of float32 [M, ...]
        Local models.
    model : int64 [M]
        Which global model each local one belongs to.
    weights : float64 [M]
        Aggregation weights.
    used : bool [M]
        Who counts. The others' weight goes to the rest of their cohort, in proportion; a global
        model of which nobody counts stays as it is.
    """
    runs = next(iter(stacked.values())).shape[0]
    place = torch.nn.functional.one_hot(model, runs).T.to(weights.dtype)  # [R, M]
    intended, present = place @ weights, place @ (weights * used)
    scale = torch.where(present > 0, intended / present.clamp(min=1e-300), 0.0)
    mixing = (place * (weights * used) * scale[:, None]).float()
    moved = {}
    for name, values in stacked.items():
        update = torch.where(_like(used, values), local[name] - values[model], 0.0)
        moved[name] = values + (mixing @ update.flatten(1)).view_as(values)
    return moved


def _like(mask: Tensor, values: Tensor) -> Tensor:
    return mask.view(-1, *[1] * (values.dim() - 1))
