"""Accuracy and loss of models on a CPU: one core a model or a part of the data."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedcohort.training.clients import replicas_of
from fedcohort.training.local import Parameters
from fedcohort.training.workers import Workers

_SAMPLES_AT_ONCE = 256
_SAMPLES_A_PART = 8 * _SAMPLES_AT_ONCE


def evaluate_on_cpu(
    model: nn.Module, stacked: Parameters, data: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return accuracy and mean loss of R global models on the same data, float64 [R] each.

    The result does not depend on the number of cores.

    Parameters
    ----------
    model : nn.Module
        The architecture.
    stacked : dict of float32 [R, ...]
        Global models.
    data : (float32 [N, ...], int64 [N])
        Inputs and labels.
    """
    x, y = data
    runs = next(iter(stacked.values())).shape[0]
    workers = Workers(torch.get_num_threads(), 1)
    replicas = replicas_of(model, x.shape[1:], workers.count)
    names = [name for name, _ in model.named_parameters()]
    parts = list(zip(torch.split(x, _SAMPLES_A_PART), torch.split(y, _SAMPLES_A_PART), strict=True))

    @torch.inference_mode()
    def score(item: tuple[int, int]) -> tuple[Tensor, Tensor]:
        run, part = item
        replica = replicas.get()
        try:
            replica.load([stacked[name][run] for name in names])
            right = torch.zeros((), dtype=torch.float64)
            lost = torch.zeros((), dtype=torch.float64)
            pieces = (torch.split(values, _SAMPLES_AT_ONCE) for values in parts[part])
            for xs, ys in zip(*pieces, strict=True):
                logits = replica.forward(xs)
                right += (logits.argmax(1) == ys).sum()
                lost += F.cross_entropy(logits, ys, reduction="sum")
            return right, lost
        finally:
            replicas.put(replica)

    items = [(run, part) for run in range(runs) for part in range(len(parts))]
    scores = workers.map(score, items)
    right, lost = (
        torch.stack(column).view(runs, -1).sum(1) for column in zip(*scores, strict=True)
    )
    return right / len(y), lost / len(y)


def client_losses_on_cpu(
    model: nn.Module,
    parameters: Parameters,
    data: tuple[Tensor, Tensor],
    samples: Tensor,
    sizes: Tensor,
) -> Tensor:
    """Return one model's mean loss on each client's data; see `evaluation.client_losses`.

    The result does not depend on the number of cores.
    """
    x, y = data
    workers = Workers(torch.get_num_threads(), 1)
    replicas = replicas_of(model, x.shape[1:], workers.count)
    values = [parameters[name] for name, _ in model.named_parameters()]

    @torch.inference_mode()
    def lose(part: Tensor) -> Tensor:
        replica = replicas.get()
        try:
            replica.load(values)
            return F.cross_entropy(replica.forward(x[part]), y[part], reduction="none")
        finally:
            replicas.put(replica)

    losses = torch.cat(workers.map(lose, torch.split(samples, _SAMPLES_AT_ONCE)))
    return torch.segment_reduce(losses.double(), "mean", lengths=sizes)
