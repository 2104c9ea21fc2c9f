"""One step of local gradient descent, for the trainers that write it out."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedcohort.training.plan import LocalWork


@torch.no_grad()
def direction(
    gradients: list[Tensor],
    parameters: Sequence[Tensor],
    first: Sequence[Tensor],
    velocity: list[Tensor],
    work: LocalWork,
) -> list[Tensor]:
    """Return what to step along: the gradients with FedProx's term and momentum.

    Parameters
    ----------
    gradients : list of Tensor
        Of the loss; changed in place.
    parameters, first : sequence of Tensor
        Where the step starts, and where local training did; `first` is read with a proximal term.
    velocity : list of Tensor
        What momentum remembers, empty before the first step; changed in place.
    work : LocalWork
        Gives both strengths.
    """
    if work.proximal:
        away = torch._foreach_sub(list(parameters), list(first))
        torch._foreach_add_(gradients, away, alpha=work.proximal)
    if not work.momentum:
        return gradients
    if velocity:
        torch._foreach_mul_(velocity, work.momentum)
        torch._foreach_add_(velocity, gradients)
    else:
        velocity.extend(gradients)
    return velocity
