"""Accuracy and loss of global models."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedcohort.training.convolution import batched_convolutions
from fedcohort.training.local import Parameters, load_parameters


@torch.no_grad()
def evaluate(
    model: nn.Module,
    stacked: Parameters,
    data: tuple[Tensor, Tensor],
    *,
    batched: bool,
    samples_at_once: int = 2000,
) -> tuple[Tensor, Tensor]:
    """Return accuracy and mean loss of R global models on the same data, float64 [R] each.

    Parameters
    ----------
    model : nn.Module
        The architecture.
    stacked : dict of float32 [R, ...]
        Global models.
    data : (float32 [N, ...], int64 [N])
        Inputs and labels.
    batched : bool
        All models at once, or one after the other.
    samples_at_once : int
        Samples a forward pass.
    """
    x, y = data
    runs = next(iter(stacked.values())).shape[0]
    right = torch.zeros(runs, dtype=torch.float64, device=x.device)
    lost = torch.zeros(runs, dtype=torch.float64, device=x.device)
    batches = torch.split(x, samples_at_once), torch.split(y, samples_at_once)
    for xs, ys in zip(*batches, strict=True):
        logits = _logits(model, stacked, xs, batched=batched)
        right += (logits.argmax(2) == ys).sum(1)
        targets = ys.expand(runs, -1).flatten()
        losses = F.cross_entropy(logits.flatten(0, 1), targets, reduction="none")
        lost += losses.view(runs, -1).sum(1, dtype=torch.float64)
    return right / len(y), lost / len(y)


def _logits(model: nn.Module, stacked: Parameters, x: Tensor, *, batched: bool) -> Tensor:
    if batched:
        with batched_convolutions(x.device):
            forward = vmap(lambda parameters: functional_call(model, parameters, (x,)))
            return forward(stacked)  # type: ignore[no-any-return]
    logits = []
    for r in range(next(iter(stacked.values())).shape[0]):
        load_parameters(model, {name: values[r] for name, values in stacked.items()})
        logits.append(model(x))
    return torch.stack(logits)


@torch.no_grad()
def client_losses(
    model: nn.Module,
    parameters: Parameters,
    data: tuple[Tensor, Tensor],
    samples: Tensor,
    sizes: Tensor,
    *,
    samples_at_once: int = 2000,
) -> Tensor:
    """Return one global model's mean loss on each client's data, float64 [m].

    Parameters
    ----------
    parameters : dict of float32 [...]
        The global model.
    samples : int64 [total]
        Sample indices, client after client.
    sizes : int64 [m]
        Samples of each client.
    """
    x, y = data
    losses = [
        F.cross_entropy(functional_call(model, parameters, (x[part],)), y[part], reduction="none")
        for part in torch.split(samples, samples_at_once)
    ]
    return torch.segment_reduce(torch.cat(losses).double(), "mean", lengths=sizes)
