"""All clients of all runs at once, by `torch.func.vmap`: for models on a GPU.

Batches are padded to the largest, so a model that looks at a whole batch at once (BatchNorm) cannot
be trained here.
"""

import contextlib
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedcohort.training.descent import Descent
from fedcohort.training.keyed import KeyedDropout
from fedcohort.training.modules import output_of, trained_names
from fedcohort.training.plan import make_plan, step_keys, to_device
from fedcohort.training.problem import (
    Data,
    Groups,
    LocalProblem,
    Parameters,
    Trained,
    joined,
    per_model,
)
from fedcohort.training.task import Task
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
    problem.model.train()
    plan = make_plan(problem.jobs, problem.pool, work)
    keys = to_device(step_keys(problem.jobs.key, len(plan.sample)), x.device)
    model_of = to_device(problem.jobs.model, x.device)
    local = {name: values[model_of] for name, values in problem.stacked.items()}
    trained = {name: local[name] for name in trained_names(problem.model)}
    others = {name: values for name, values in local.items() if name not in trained}
    parameters = list(trained.values())
    first = [values.clone() for values in parameters] if work.proximal else []
    descent = Descent(work, first, stacked=True)
    step = vmap(grad_and_value(_batch_loss(problem)))
    total = torch.zeros(len(problem.jobs), dtype=torch.float64, device=x.device)
    for sample, weight, count, key in zip(plan.sample, plan.weight, plan.counts, keys, strict=True):
        gradients, losses = step(trained, others, x[sample], y[sample], weight, key)
        total += losses.double() * count
        # A job that has finished keeps its velocity from moving it.
        rate = work.lr * (count > 0).to(losses.dtype)
        found = [gradients[name] for name in trained]
        for values, move in zip(parameters, descent.direction(parameters, found), strict=True):
            values.sub_(move * per_model(rate, move))
    return Trained(local, total / plan.counts.sum(0))


def _batch_loss(problem: LocalProblem) -> Callable[..., Tensor]:
    model, task, augmentation = problem.model, problem.task, problem.work.augmentation

    def loss(
        trained: Parameters, others: Parameters, x: Tensor, y: Tensor, weight: Tensor, key: Tensor
    ) -> Tensor:
        inputs = augmentation(x, key) if augmentation else x
        with KeyedDropout(key) if problem.traits.draws else contextlib.nullcontext():
            outputs = output_of(functional_call(model, trained | others, (inputs,)))
        return (task.losses(outputs, y) * weight).sum()

    return loss


@torch.no_grad()
def evaluate_batched(
    model: nn.Module, stacked: Parameters, data: Data, task: Task
) -> tuple[Tensor, Tensor]:
    """Return the score and the mean loss of R global models on the same data, float64 [R] each."""
    model.eval()
    judged: list[Tensor] = []
    losses: list[Tensor] = []

    def measure(parameters: Parameters, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        outputs = output_of(functional_call(model, parameters, (x,)))
        return task.judge(outputs, y), task.losses(outputs, y).double().sum()

    for x, y in zip(*(torch.split(d, _SAMPLES_AT_ONCE) for d in data), strict=True):
        found, lost = vmap(measure, in_dims=(0, None, None))(stacked, x, y)
        judged.append(found)
        losses.append(lost)
    samples = len(data[1])
    scores = [task.score_of(own) for own in torch.cat(judged, dim=1)]
    return torch.stack(scores), torch.stack(losses).sum(0) / samples


@torch.no_grad()
def measure_batched(
    model: nn.Module,
    stacked: Parameters,
    data: Data,
    groups: Groups,
    task: Task,
    *,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Return score and mean loss on each group of samples, float64 [m] each; see `Trainer`.

    What is multiplied has the type `dtype`.
    """
    x, y = data
    model.eval()
    judged: list[Tensor] = []
    losses: list[Tensor] = []
    for which, part in groups.pieces(_SAMPLES_AT_ONCE):
        own = {name: values[which] for name, values in stacked.items()}
        with torch.autocast(x.device.type, dtype, enabled=dtype != torch.float32):
            outputs = output_of(functional_call(model, own, (x[part],))).float()
        judged.append(task.judge(outputs, y[part]))
        losses.append(task.losses(outputs, y[part]))
    return task.scores_of(torch.cat(judged), groups.sizes), groups.means(torch.cat(losses))


BATCHED = Trainer("batched", train_batched, evaluate_batched, measure_batched)
