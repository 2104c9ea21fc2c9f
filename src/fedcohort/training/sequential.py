"""The text-book loop, one client after the other: the oracle that all trainers are tested against.

Nothing here is fast, and nothing is shared with the other trainers but the plan of the batches and
the keyed draws.
"""

import contextlib

import torch
from torch import Tensor, nn

from fedcohort.training.keyed import KeyedDropout
from fedcohort.training.modules import load_state, named_state, output_of
from fedcohort.training.plan import make_plan, step_keys
from fedcohort.training.problem import Data, Groups, LocalProblem, LocalWork, Parameters, Trained
from fedcohort.training.task import Task
from fedcohort.training.trainer import Trainer

_SAMPLES_AT_ONCE = 2000


def train_sequential(problem: LocalProblem) -> Trained:
    """Train one client after the other with PyTorch's own optimisers."""
    x, y = problem.data
    work, task, model = problem.work, problem.task, problem.model
    model.train()
    finished: list[Parameters] = []
    losses = []
    for j in range(len(problem.jobs)):
        job = problem.jobs[j : j + 1]
        plan = make_plan(job, problem.pool, work)
        keys = step_keys(job.key, len(plan.sample)).to(x.device)[:, 0]
        first = {name: values[int(job.model[0])] for name, values in problem.stacked.items()}
        load_state(model, first)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimiser = _optimiser(trained, work)
        total, seen = 0.0, 0
        for sample, weight, key in zip(plan.sample[:, 0], plan.weight[:, 0], keys, strict=True):
            batch = sample[weight > 0]
            inputs = work.augmentation(x[batch], key) if work.augmentation else x[batch]
            optimiser.zero_grad()
            with KeyedDropout(key) if problem.traits.draws else contextlib.nullcontext():
                outputs = output_of(model(inputs))
            loss = task.losses(outputs, y[batch]).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            if work.proximal:
                _draw_back(model, first, work.proximal)
            if work.clip is not None:
                nn.utils.clip_grad_norm_(trained, work.clip)
            optimiser.step()
            total += float(loss.detach()) * len(batch)
            seen += len(batch)
        finished.append({name: values.detach().clone() for name, values in named_state(model)})
        losses.append(total / seen)
    local = {name: torch.stack([p[name] for p in finished]) for name in problem.stacked}
    return Trained(local, torch.tensor(losses, dtype=torch.float64, device=x.device))


def _optimiser(parameters: list[nn.Parameter], work: LocalWork) -> torch.optim.Optimizer:
    if work.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=work.lr, weight_decay=work.weight_decay)
    return torch.optim.SGD(
        parameters,
        lr=work.lr,
        momentum=work.momentum,
        nesterov=work.nesterov,
        weight_decay=work.weight_decay,
    )


def _draw_back(model: nn.Module, first: Parameters, strength: float) -> None:
    """Add the gradient of FedProx's term, strength / 2 · |w - first|²."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            parameter.grad.add_(parameter.detach() - first[name], alpha=strength)


@torch.no_grad()
def evaluate_sequential(
    model: nn.Module, stacked: Parameters, data: Data, task: Task
) -> tuple[Tensor, Tensor]:
    """Return the score and the mean loss of R global models on the same data, float64 [R] each."""
    model.eval()
    scores, losses = [], []
    for r in range(len(next(iter(stacked.values())))):
        load_state(model, {name: values[r] for name, values in stacked.items()})
        judged, lost = [], 0.0
        for x, y in zip(*(torch.split(d, _SAMPLES_AT_ONCE) for d in data), strict=True):
            outputs = output_of(model(x))
            judged.append(task.judge(outputs, y))
            lost += float(task.losses(outputs, y).double().sum())
        scores.append(float(task.score_of(torch.cat(judged))))
        losses.append(lost / len(data[1]))
    return torch.tensor(scores, dtype=torch.float64), torch.tensor(losses, dtype=torch.float64)


@torch.no_grad()
def measure_sequential(
    model: nn.Module, stacked: Parameters, data: Data, groups: Groups, task: Task
) -> tuple[Tensor, Tensor]:
    """Return score and mean loss on each group of samples, float64 [m] each; see `Trainer`."""
    x, y = data
    model.eval()
    scores, losses = [], []
    for g, own in enumerate(torch.split(groups.samples, groups.sizes.tolist())):
        which = 0 if groups.model is None else int(groups.model[g])
        load_state(model, {name: values[which] for name, values in stacked.items()})
        outputs = output_of(model(x[own]))
        scores.append(task.score_of(task.judge(outputs, y[own])))
        losses.append(task.losses(outputs, y[own]).double().mean())
    return torch.stack(scores), torch.stack(losses)


SEQUENTIAL = Trainer("sequential", train_sequential, evaluate_sequential, measure_sequential)
