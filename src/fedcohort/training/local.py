"""Local training: one call, a plain backend and a batched one.

The sequential backend is the text-book loop, one client after the other; it is the oracle that the
batched one is tested against. The batched backend trains all clients of all runs in lockstep.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedcohort.training.convolution import batched_convolutions
from fedcohort.training.plan import Jobs, LocalWork, make_plan, to_device

Parameters = dict[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Trained:
    """Local models.

    Attributes
    ----------
    parameters : dict of float32 [M, ...]
        One local model a job.
    losses : float64 [M]
        Mean loss a sample over all local steps.
    """

    parameters: Parameters
    losses: Tensor


def joined(parts: Sequence[Trained]) -> Trained:
    """Return the local models of several trainings as those of one."""
    if len(parts) == 1:
        return parts[0]
    names = parts[0].parameters
    parameters = {name: torch.cat([part.parameters[name] for part in parts]) for name in names}
    return Trained(parameters, torch.cat([part.losses for part in parts]))


class Trainer(Protocol):
    """Trains jobs from stacked global models."""

    def __call__(
        self,
        model: nn.Module,
        stacked: Parameters,
        jobs: Jobs,
        data: tuple[Tensor, Tensor],
        pool: Tensor,
        work: LocalWork,
    ) -> Trained:
        """Train.

        Parameters
        ----------
        model : nn.Module
            The architecture; its own weights are not used.
        stacked : dict of float32 [R, ...]
            Global models of R runs.
        jobs : Jobs
            M jobs.
        data : (float32 [N, ...], int64 [N])
            Inputs and labels.
        pool : int64 [total]
            Sample indices, client after client.
        work : LocalWork
            Batch size, learning rate, momentum.
        """
        ...


def train_sequential(
    model: nn.Module,
    stacked: Parameters,
    jobs: Jobs,
    data: tuple[Tensor, Tensor],
    pool: Tensor,
    work: LocalWork,
) -> Trained:
    """Train one client after the other with `torch.optim.SGD`; see `Trainer`."""
    x, y = data
    finished: list[Parameters] = []
    losses = []
    for j in range(len(jobs)):
        job = jobs[j : j + 1]
        plan = make_plan(job, pool, work)
        first = {name: values[int(job.model[0])] for name, values in stacked.items()}
        load_parameters(model, first)
        optimiser = torch.optim.SGD(model.parameters(), lr=work.lr, momentum=work.momentum)
        total, seen = 0.0, 0
        for sample, weight in zip(plan.sample[:, 0], plan.weight[:, 0], strict=True):
            batch = sample[weight > 0]
            optimiser.zero_grad()
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            if work.proximal:
                _draw_back(model, first, work.proximal)
            optimiser.step()
            total += float(loss.detach()) * len(batch)
            seen += len(batch)
        finished.append({name: p.detach().clone() for name, p in model.named_parameters()})
        losses.append(total / seen)
    joined = {name: torch.stack([p[name] for p in finished]) for name in stacked}
    return Trained(joined, torch.tensor(losses, dtype=torch.float64, device=x.device))


def _draw_back(model: nn.Module, first: Parameters, strength: float) -> None:
    """Add the gradient of FedProx's term, strength / 2 · |w - first|²."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            parameter.grad.add_(parameter.detach() - first[name], alpha=strength)


def train_batched(
    model: nn.Module,
    stacked: Parameters,
    jobs: Jobs,
    data: tuple[Tensor, Tensor],
    pool: Tensor,
    work: LocalWork,
    *,
    jobs_at_once: int = 1000,
) -> Trained:
    """Train all jobs step by step as one program; see `Trainer`.

    Parameters
    ----------
    jobs_at_once : int
        Jobs whose activations fit into memory together.
    """
    parts = [
        _train_lockstep(model, stacked, jobs[i : i + jobs_at_once], data, pool, work)
        for i in range(0, len(jobs), jobs_at_once)
    ]
    return joined(parts)


def _train_lockstep(
    model: nn.Module,
    stacked: Parameters,
    jobs: Jobs,
    data: tuple[Tensor, Tensor],
    pool: Tensor,
    work: LocalWork,
) -> Trained:
    x, y = data
    plan = make_plan(jobs, pool, work)
    model_of = to_device(jobs.model, x.device)
    local = {name: values[model_of] for name, values in stacked.items()}
    first = {name: values.clone() for name, values in local.items()} if work.proximal else {}
    velocity = {name: torch.zeros_like(values) for name, values in local.items()}
    step = vmap(grad_and_value(_batch_loss(model)))
    total = torch.zeros(len(jobs), dtype=torch.float64, device=x.device)
    counts = plan.counts
    for sample, weight, count in zip(plan.sample, plan.weight, counts, strict=True):
        gradients, losses = step(local, x[sample], y[sample], weight)
        total += losses.double() * count
        active = (count > 0).to(x.dtype)
        for name, gradient in gradients.items():
            if work.proximal:
                gradient.add_(local[name] - first[name], alpha=work.proximal)
            velocity[name].mul_(work.momentum).add_(gradient)
            # A job that has finished keeps its velocity from moving it.
            shape = (-1, *[1] * (gradient.dim() - 1))
            local[name].sub_(velocity[name] * (work.lr * active).view(shape))
    return Trained(local, total / counts.sum(0))


def _batch_loss(model: nn.Module) -> Callable[[Parameters, Tensor, Tensor, Tensor], Tensor]:
    def loss(parameters: Parameters, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        with batched_convolutions(x.device):
            logits = functional_call(model, parameters, (x,))
        return (F.cross_entropy(logits, y, reduction="none") * weight).sum()

    return loss


@torch.no_grad()
def load_parameters(model: nn.Module, values: Parameters) -> None:
    """Copy one set of parameters into a module."""
    for name, parameter in model.named_parameters():
        parameter.copy_(values[name])
