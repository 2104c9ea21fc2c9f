"""Profiles from gradients, which the paper compares FC-1 profiles with.

A gradient profile is the gradient of the client's mean loss at the initial model; a representative
gradient (Y. Fraboni et al.: Clustered Sampling, ICML 2021) is what local training changes, local
minus initial parameters. Both are as long as the model, where an FC-1 profile has Q numbers.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each sample, [n]."""
    return F.cross_entropy(outputs, targets, reduction="none")


def gradient_profiles(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    samples: Tensor,
    sizes: Tensor,
    losses: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
) -> Tensor:
    """Return the loss gradient of m clients at the initial model.

    Parameters
    ----------
    model : nn.Module
        The initial global model.
    x, y : float32 [N, ...], int64 [N]
        The whole data set.
    samples : int64 [total]
        Sample indices, client after client.
    sizes : int64 [m]
        Samples of each client.

    Returns
    -------
    float32 [m, d]
        One gradient per client, all parameters flattened.

    Examples
    --------
    >>> model, y = torch.nn.Linear(4, 2), torch.tensor([0, 1, 1, 0, 1, 0])
    >>> gradient_profiles(model, torch.ones(6, 4), y, torch.arange(6), torch.tensor([2, 4])).shape
    torch.Size([2, 10])
    """
    weights = [p for p in model.parameters() if p.requires_grad]
    profiles = []
    for part in torch.split(samples, sizes.tolist()):
        loss = losses(model(x[part]), y[part]).mean()
        profiles.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights)]))
    return torch.stack(profiles)


def representative_gradient_profiles(
    initial: dict[str, Tensor], local: dict[str, Tensor]
) -> Tensor:
    """Return what local training changed, float32 [m, d].

    Parameters
    ----------
    initial : dict of float32 [...]
        The initial global model.
    local : dict of float32 [m, ...]
        The model of each client after local training.

    Examples
    --------
    >>> initial = {"weight": torch.zeros(2, 3)}
    >>> representative_gradient_profiles(initial, {"weight": torch.ones(5, 2, 3)}).shape
    torch.Size([5, 6])
    """
    moved = [local[name] - initial[name] for name in initial]
    return torch.cat([values.reshape(len(values), -1) for values in moved], dim=1)
