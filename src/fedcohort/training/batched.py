"""All clients of all runs at once, by `torch.func.vmap`: for any model on a GPU."""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedcohort.training.plan import make_plan, to_device
from fedcohort.training.problem import Data, LocalProblem, Parameters, Trained, joined
from fedcohort.training.trainer import Trainer

# Jobs whose activations fit into memory together.
_JOBS_AT_ONCE = 1000
_SAMPLES_AT_ONCE = 2000


def train_batched(problem: LocalProblem) -> Trained:
    """Train all jobs step by step as one program."""
    starts = range(0, len(problem.jobs), _JOBS_AT_ONCE)
    return joined([_train(problem.only(slice(i, i + _JOBS_AT_ONCE))) for i in starts])


def _train(problem: LocalProblem) -> Trained:
    (x, y), work = problem.data, problem.work
    plan = make_plan(problem.jobs, problem.pool, work)
    model_of = to_device(problem.jobs.model, x.device)
    local = {name: values[model_of] for name, values in problem.stacked.items()}
    first = {name: values.clone() for name, values in local.items()} if work.proximal else {}
    velocity = {name: torch.zeros_like(values) for name, values in local.items()}
    step = vmap(grad_and_value(_batch_loss(problem.model)))
    total = torch.zeros(len(problem.jobs), dtype=torch.float64, device=x.device)
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
        logits = functional_call(model, parameters, (x,))
        return (F.cross_entropy(logits, y, reduction="none") * weight).sum()

    return loss


@torch.no_grad()
def evaluate_batched(model: nn.Module, stacked: Parameters, data: Data) -> tuple[Tensor, Tensor]:
    """Return accuracy and mean loss of R global models on the same data, float64 [R] each."""
    x, y = data
    runs = next(iter(stacked.values())).shape[0]
    right = torch.zeros(runs, dtype=torch.float64, device=x.device)
    lost = torch.zeros(runs, dtype=torch.float64, device=x.device)
    for xs, ys in zip(*(torch.split(d, _SAMPLES_AT_ONCE) for d in data), strict=True):
        logits = vmap(lambda parameters, xs=xs: functional_call(model, parameters, (xs,)))(stacked)
        right += (logits.argmax(2) == ys).sum(1)
        targets = ys.expand(runs, -1).flatten()
        losses = F.cross_entropy(logits.flatten(0, 1), targets, reduction="none")
        lost += losses.view(runs, -1).sum(1, dtype=torch.float64)
    return right / len(y), lost / len(y)


@torch.no_grad()
def client_losses_batched(
    model: nn.Module, parameters: Parameters, data: Data, samples: Tensor, sizes: Tensor
) -> Tensor:
    """Return one global model's mean loss on each client's data, float64 [m]; see `Trainer`."""
    x, y = data
    losses = [
        F.cross_entropy(functional_call(model, parameters, (x[part],)), y[part], reduction="none")
        for part in torch.split(samples, _SAMPLES_AT_ONCE)
    ]
    return torch.segment_reduce(torch.cat(losses).double(), "mean", lengths=sizes)


BATCHED = Trainer("batched", train_batched, evaluate_batched, client_losses_batched)
