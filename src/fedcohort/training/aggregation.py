"""The server's step: from local models to the next global ones."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from fedcohort.training.problem import Parameters, per_model
from fedcohort.training.workers import in_workers

Aggregate = Callable[[Parameters, Parameters, Tensor, Tensor, Tensor], tuple[Parameters, Tensor]]
"""What `aggregate` does, by whatever means."""

# Slots of no more values than this in all are worked on at once: fewer, larger operations.
_FEW_VALUES = 2**20


@torch.inference_mode()
def aggregate(
    stacked: Parameters,
    local: Parameters,
    slots: Tensor,
    weights: Tensor,
    trusted: Tensor,
) -> tuple[Parameters, Tensor]:
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
    trusted : bool [M]
        Who may count, and does if all of its model is finite. The others' weight goes to the rest
        of their cohort, in proportion; a global model of which nobody counts stays as it is.

    Returns
    -------
    moved : dict of float32 [R, ...]
        The next global models.
    used : bool [M]
        Who counted.
    """
    used = trusted & _finite(local)
    places = slots.clamp(min=0)
    # A GPU would have to be waited for.
    everyone = used.device.type == "cpu" and bool(used.all())
    mixing = weights.float() if everyone else _mixing(slots, weights, used)
    counted = None if everyone else used

    def moved(name: str) -> Tensor:
        # A worker does not inherit the mode of the thread that asks it.
        with torch.inference_mode():
            return _move(stacked[name], local[name], places, mixing, counted)

    values = sum(v.numel() for v in local.values())
    together = used.device.type == "cpu" and values > _FEW_VALUES
    results = in_workers(moved, stacked) if together else map(moved, stacked)
    return dict(zip(stacked, results, strict=True)), used


def _finite(models: Parameters) -> Tensor:
    """Tell which of M models are finite throughout: bool [M]."""
    # What is not a number is larger than any.
    largest = [
        torch.linalg.vector_norm(values, torch.inf, dim=tuple(range(1, values.dim())))
        if values.dim() > 1
        else values.abs()
        for values in models.values()
    ]
    return torch.stack(largest).isfinite().all(0)


def _mixing(slots: Tensor, weights: Tensor, used: Tensor) -> Tensor:
    """Return the weights [R, k] with those of who does not count given to the others."""
    counted = (slots >= 0) & used[slots.clamp(min=0)]
    # Place by place: the order of a sum must not depend on the largest cohort beside this one.
    both = torch.stack([weights, weights * counted]).unbind(2)
    intended, present = functools.reduce(torch.add, both)
    scale = torch.where(present > 0, intended / present.clamp(min=1e-300), 0.0)
    return (weights * counted * scale[:, None]).float()


def _move(
    values: Tensor, local: Tensor, places: Tensor, mixing: Tensor, used: Tensor | None
) -> Tensor:
    """Return one parameter [R, ...] of the global models + Σ mixing · (local[places] - values).

    What is not `used` bool [M] has mixing 0; None says that everyone is used.
    """
    flat = values.reshape(len(values), -1)
    if used is not None:
        # What does not count may not even be a number, and 0 times that is not 0.
        local = torch.where(per_model(used, local), local, 0.0)
    moved = flat.clone()
    at_once = max(1, _FEW_VALUES // max(1, flat.numel()))
    pairs = (torch.split(slots, at_once, dim=1) for slots in (places, mixing))
    for place, share in zip(*pairs, strict=True):
        steps = local.index_select(0, place.flatten()).view(*place.shape, -1)
        steps.sub_(flat.unsqueeze(1)).mul_(share.unsqueeze(2))
        # Slot after slot, so that a model's sum does not depend on what it is computed beside.
        for step in steps.unbind(1):
            moved.add_(step)
    return moved.view_as(values)
