"""One client per core: for any model on a CPU.

Each worker has a copy of the model and trains one client after the other; oneDNN's kernels, on
channels-last tensors where a model takes them, one thread per operation, no optimiser object, no
number read back before the end. A result depends neither on the number of workers nor on which of
them computed it.
"""

import contextlib
import copy
import dataclasses
import queue
import weakref
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from fedcohort.training.descent import Descent
from fedcohort.training.keyed import KeyedDropout
from fedcohort.training.modules import in_fast_layout, named_state, output_of
from fedcohort.training.plan import make_plan, step_keys, to_device
from fedcohort.training.problem import Data, Groups, LocalProblem, Parameters, Trained
from fedcohort.training.task import Task
from fedcohort.training.trainer import Trainer
from fedcohort.training.workers import in_workers, worker_count

# Larger batches are computed in pieces whose gradients are added: activations of more samples leave
# the cache, and memory that the system must hand out anew costs more than the arithmetic.
_SAMPLES_AT_ONCE = 192
# Of an evaluation, what one worker does at a time.
_EVALUATED_AT_ONCE = 256
_EVALUATED_PER_PART = 8 * _EVALUATED_AT_ONCE


def train_per_client(problem: LocalProblem) -> Trained:
    """Train one job after the other on each worker."""
    jobs, stacked = problem.jobs, problem.stacked
    plan = make_plan(jobs, problem.pool, problem.work)
    keys = to_device(step_keys(jobs.key, len(plan.sample)), problem.pool.device)
    local = {n: v.new_empty(len(jobs), *v.shape[1:]) for n, v in stacked.items()}
    replicas = _replicas_of(problem.model, problem.data[0])
    starts, steps = jobs.model.tolist(), plan.counts.T.tolist()
    losses = torch.empty(len(jobs), dtype=torch.float64, device=problem.pool.device)

    def train(j: int) -> None:
        with replicas.one() as replica:
            replica.load({name: values[starts[j]] for name, values in stacked.items()})
            batches = [(plan.sample[t, j, :n], keys[t, j]) for t, n in enumerate(steps[j]) if n]
            losses[j] = _descend(replica, problem, batches)
            for name, values in named_state(replica.model):
                local[name][j] = values.detach()

    # The longest jobs first, so that no worker is left alone with one at the end.
    order = plan.counts.sum(0).argsort(descending=True, stable=True)
    in_workers(train, order.tolist())
    return Trained(local, losses)


def evaluate_per_client(
    model: nn.Module, stacked: Parameters, data: Data, task: Task
) -> tuple[Tensor, Tensor]:
    """Return the score and the mean loss of R global models on the same data, float64 [R] each."""
    runs = len(next(iter(stacked.values())))
    replicas = _replicas_of(model, data[0])
    parts = list(zip(*(torch.split(d, _EVALUATED_PER_PART) for d in data), strict=True))

    @torch.no_grad()
    def measure(item: tuple[int, int]) -> tuple[Tensor, Tensor]:
        run, part = item
        judged, losses = [], []
        with replicas.one() as replica:
            replica.load({name: values[run] for name, values in stacked.items()})
            replica.model.eval()
            pieces = (torch.split(values, _EVALUATED_AT_ONCE) for values in parts[part])
            for x, y in zip(*pieces, strict=True):
                outputs = output_of(replica.model(x))
                judged.append(task.judge(outputs, y))
                losses.append(task.losses(outputs, y).sum().double())
        return torch.cat(judged), torch.stack(losses).sum()

    found = in_workers(measure, [(run, part) for run in range(runs) for part in range(len(parts))])
    judged, losses = zip(*found, strict=True)
    samples = len(data[1])
    by_run = torch.cat(judged).view(runs, samples, *judged[0].shape[1:])
    scores = torch.stack([task.score_of(own) for own in by_run])
    return scores, torch.stack(losses).view(runs, -1).sum(1) / samples


def measure_per_client(
    model: nn.Module, stacked: Parameters, data: Data, groups: Groups, task: Task
) -> tuple[Tensor, Tensor]:
    """Return score and mean loss on each group of samples, float64 [m] each; see `Trainer`."""
    x, y = data
    replicas = _replicas_of(model, x)

    @torch.no_grad()
    def measure(piece: tuple[int, Tensor]) -> tuple[Tensor, Tensor]:
        which, part = piece
        with replicas.one() as replica:
            replica.load({name: values[which] for name, values in stacked.items()})
            replica.model.eval()
            outputs = output_of(replica.model(x[part]))
            return task.judge(outputs, y[part]), task.losses(outputs, y[part])

    found = in_workers(measure, groups.pieces(_EVALUATED_AT_ONCE))
    judged, losses = (torch.cat(column) for column in zip(*found, strict=True))
    return task.scores_of(judged, groups.sizes), groups.means(losses)


@dataclasses.dataclass(frozen=True)
class _Replica:
    """One worker's own copy of a model."""

    model: nn.Module
    trained: list[Tensor]

    @torch.no_grad()
    def load(self, values: Parameters) -> None:
        """Take over a model's parameters and buffers."""
        # Asked for anew each time: a forward pass may put another tensor in a buffer's place.
        state = dict(named_state(self.model))
        torch._foreach_copy_(list(state.values()), [values[name] for name in state])


class _Replicas:
    """Copies of a model, as many as there are workers, to take and put back."""

    def __init__(self, model: nn.Module, x: Tensor, count: int) -> None:
        self.count, self.dtype = count, next(model.parameters()).dtype
        self._free: queue.SimpleQueue[_Replica] = queue.SimpleQueue()
        fast = in_fast_layout(model, x)
        for _ in range(count):
            own = copy.deepcopy(fast)
            self._free.put(_Replica(own, [p for p in own.parameters() if p.requires_grad]))

    @contextlib.contextmanager
    def one(self) -> Iterator[_Replica]:
        """Lend a copy."""
        replica = self._free.get()
        try:
            yield replica
        finally:
            self._free.put(replica)


def _replicas_of(model: nn.Module, x: Tensor) -> _Replicas:
    """Return the copies of a model for inputs such as `x`, which live as long as it does."""
    found, dtype = _replicas.get(model), next(model.parameters()).dtype
    if found is None or found.count < worker_count() or found.dtype != dtype:
        found = _replicas[model] = _Replicas(model, x, worker_count())
    return found


_replicas: weakref.WeakKeyDictionary[nn.Module, _Replicas] = weakref.WeakKeyDictionary()


def _descend(
    replica: _Replica, problem: LocalProblem, batches: Sequence[tuple[Tensor, Tensor]]
) -> Tensor:
    """Take one step of gradient descent per batch; return the mean loss per sample."""
    (x, y), work = problem.data, problem.work
    replica.model.train()
    parameters = replica.trained
    first = [p.detach().clone() for p in parameters] if work.proximal else []
    descent = Descent(work, first)
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for batch, key in batches:
        inputs = work.augmentation(x[batch], key) if work.augmentation else x[batch]
        gradients, loss = _gradients(replica, problem, inputs, y[batch], key)
        total += loss
        with torch.no_grad():
            moves = descent.direction(parameters, gradients)
            torch._foreach_add_(parameters, moves, alpha=-work.lr)
    return total / sum(len(batch) for batch, _ in batches)


def _gradients(
    replica: _Replica, problem: LocalProblem, x: Tensor, y: Tensor, key: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Return the gradient of the mean loss, and the sum of the losses."""
    gradients: list[Tensor] = []
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    draws, mixes = problem.traits.draws, problem.traits.mixes
    pieces = 1 if draws or mixes else -(-len(y) // _SAMPLES_AT_ONCE)
    for xs, ys in zip(x.tensor_split(pieces), y.tensor_split(pieces), strict=True):
        with KeyedDropout(key) if draws else contextlib.nullcontext():
            outputs = output_of(replica.model(xs))
        loss = problem.task.losses(outputs, ys).sum()
        part = list(torch.autograd.grad(loss / len(y), replica.trained))
        total += loss.detach()
        if gradients:
            torch._foreach_add_(gradients, part)
        else:
            gradients = part
    return gradients, total


PER_CLIENT = Trainer("per client", train_per_client, evaluate_per_client, measure_per_client)
