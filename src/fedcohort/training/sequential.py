"""The text-book loop, one client after the other: the oracle that all trainers are tested against.

Nothing here is fast, and nothing is shared with the other trainers but the plan of the batches.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedcohort.training.plan import make_plan
from fedcohort.training.problem import Data, LocalProblem, Parameters, Trained
from fedcohort.training.trainer import Trainer

_SAMPLES_AT_ONCE = 2000


def train_sequential(problem: LocalProblem) -> Trained:
    """Train one client after the other with `torch.optim.SGD`."""
    x, y = problem.data
    work, model = problem.work, problem.model
    finished: list[Parameters] = []
    losses = []
    for j in range(len(problem.jobs)):
        job = problem.jobs[j : j + 1]
        plan = make_plan(job, problem.pool, work)
        first = {name: values[int(job.model[0])] for name, values in problem.stacked.items()}
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
    local = {name: torch.stack([p[name] for p in finished]) for name in problem.stacked}
    return Trained(local, torch.tensor(losses, dtype=torch.float64, device=x.device))


def _draw_back(model: nn.Module, first: Parameters, strength: float) -> None:
    """Add the gradient of FedProx's term, strength / 2 · |w - first|²."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            parameter.grad.add_(parameter.detach() - first[name], alpha=strength)


@torch.no_grad()
def evaluate_sequential(model: nn.Module, stacked: Parameters, data: Data) -> tuple[Tensor, Tensor]:
    """Return accuracy and mean loss of R global models on the same data, float64 [R] each."""
    accuracies, losses = [], []
    for r in range(len(next(iter(stacked.values())))):
        load_parameters(model, {name: values[r] for name, values in stacked.items()})
        right, lost = 0, 0.0
        for x, y in zip(*(torch.split(d, _SAMPLES_AT_ONCE) for d in data), strict=True):
            logits = model(x)
            right += int((logits.argmax(1) == y).sum())
            lost += float(F.cross_entropy(logits, y, reduction="none").double().sum())
        accuracies.append(right / len(data[1]))
        losses.append(lost / len(data[1]))
    return torch.tensor(accuracies, dtype=torch.float64), torch.tensor(losses, dtype=torch.float64)


@torch.no_grad()
def client_losses_sequential(
    model: nn.Module, parameters: Parameters, data: Data, samples: Tensor, sizes: Tensor
) -> Tensor:
    """Return one global model's mean loss on each client's data, float64 [m]; see `Trainer`."""
    x, y = data
    load_parameters(model, parameters)
    clients = torch.split(samples, sizes.tolist())
    return torch.stack([F.cross_entropy(model(x[own]), y[own]).double() for own in clients])


@torch.no_grad()
def load_parameters(model: nn.Module, values: Parameters) -> None:
    """Copy one set of parameters into a module."""
    for name, parameter in model.named_parameters():
        parameter.copy_(values[name])


SEQUENTIAL = Trainer("sequential", train_sequential, evaluate_sequential, client_losses_sequential)
