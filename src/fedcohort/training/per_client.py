"""One client per core: for any model on a CPU.

Each worker has a copy of the model and trains one client after the other; oneDNN's kernels on
channels-last tensors, one thread per operation, no optimiser object, no number read back before the
end. A result depends neither on the number of workers nor on which of them computed it.
"""

import contextlib
import copy
import dataclasses
import queue
import weakref
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedcohort.training.plan import make_plan
from fedcohort.training.problem import Data, LocalProblem, LocalWork, Parameters, Trained
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
    names = [name for name, _ in problem.model.named_parameters()]
    local = {n: v.new_empty(len(jobs), *v.shape[1:]) for n, v in stacked.items()}
    replicas = _replicas_of(problem.model)
    starts, steps = jobs.model.tolist(), plan.counts.T.tolist()
    losses = torch.empty(len(jobs), dtype=torch.float64)

    def train(j: int) -> None:
        with replicas.one() as replica:
            first = [stacked[name][starts[j]] for name in names]
            replica.load(first)
            batches = [plan.sample[t, j, :n] for t, n in enumerate(steps[j]) if n]
            losses[j] = _descend(replica, first, problem.data, batches, problem.work)
            for name, values in zip(names, replica.parameters, strict=True):
                local[name][j] = values.detach()

    # The longest jobs first, so that no worker is left alone with one at the end.
    order = plan.counts.sum(0).argsort(descending=True, stable=True)
    in_workers(train, order.tolist())
    return Trained(local, losses)


def evaluate_per_client(model: nn.Module, stacked: Parameters, data: Data) -> tuple[Tensor, Tensor]:
    """Return accuracy and mean loss of R global models on the same data, float64 [R] each."""
    runs = len(next(iter(stacked.values())))
    replicas = _replicas_of(model)
    names = [name for name, _ in model.named_parameters()]
    parts = list(zip(*(torch.split(d, _EVALUATED_PER_PART) for d in data), strict=True))

    @torch.inference_mode()
    def score(item: tuple[int, int]) -> tuple[Tensor, Tensor]:
        run, part = item
        right = torch.zeros((), dtype=torch.float64)
        lost = torch.zeros((), dtype=torch.float64)
        with replicas.one() as replica:
            replica.load([stacked[name][run] for name in names])
            for x, y in zip(
                *(torch.split(d, _EVALUATED_AT_ONCE) for d in parts[part]), strict=True
            ):
                logits = replica.model(x)
                right += (logits.argmax(1) == y).sum()
                lost += F.cross_entropy(logits, y, reduction="sum")
        return right, lost

    scores = in_workers(score, [(run, part) for run in range(runs) for part in range(len(parts))])
    right, lost = (
        torch.stack(column).view(runs, -1).sum(1) for column in zip(*scores, strict=True)
    )
    return right / len(data[1]), lost / len(data[1])


def client_losses_per_client(
    model: nn.Module, parameters: Parameters, data: Data, samples: Tensor, sizes: Tensor
) -> Tensor:
    """Return one global model's mean loss on each client's data, float64 [m]; see `Trainer`."""
    x, y = data
    replicas = _replicas_of(model)
    values = [parameters[name] for name, _ in model.named_parameters()]

    @torch.inference_mode()
    def lose(part: Tensor) -> Tensor:
        with replicas.one() as replica:
            replica.load(values)
            return F.cross_entropy(replica.model(x[part]), y[part], reduction="none")

    losses = torch.cat(in_workers(lose, torch.split(samples, _EVALUATED_AT_ONCE)))
    return torch.segment_reduce(losses.double(), "mean", lengths=sizes)


@dataclasses.dataclass(frozen=True)
class _Replica:
    """One worker's own copy of a model; its convolutions are channels-last."""

    model: nn.Module
    parameters: list[Tensor]

    @torch.no_grad()
    def load(self, values: Sequence[Tensor]) -> None:
        """Take over a model's parameters."""
        torch._foreach_copy_(self.parameters, list(values))


class _Replicas:
    """Copies of a model, as many as there are workers, to take and put back."""

    def __init__(self, model: nn.Module, count: int) -> None:
        self.count, self.dtype = count, next(model.parameters()).dtype
        self._free: queue.SimpleQueue[_Replica] = queue.SimpleQueue()
        for _ in range(count):
            own = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self._free.put(_Replica(own, list(own.parameters())))

    @contextlib.contextmanager
    def one(self) -> Iterator[_Replica]:
        """Lend a copy."""
        replica = self._free.get()
        try:
            yield replica
        finally:
            self._free.put(replica)


def _replicas_of(model: nn.Module) -> _Replicas:
    """Return the copies of a model, which live as long as it does."""
    found, dtype = _replicas.get(model), next(model.parameters()).dtype
    if found is None or found.count < worker_count() or found.dtype != dtype:
        found = _replicas[model] = _Replicas(model, worker_count())
    return found


_replicas: weakref.WeakKeyDictionary[nn.Module, _Replicas] = weakref.WeakKeyDictionary()


def _descend(
    replica: _Replica,
    first: Sequence[Tensor],
    data: Data,
    batches: Sequence[Tensor],
    work: LocalWork,
) -> Tensor:
    """Take one step of gradient descent per batch; return the mean loss per sample."""
    x, y = data
    parameters = replica.parameters
    velocity: list[Tensor] = []
    total = torch.zeros((), dtype=torch.float64)
    for batch in batches:
        gradients, loss = _gradients(replica, x[batch], y[batch])
        total += loss
        with torch.no_grad():
            moves = _direction(gradients, parameters, first, velocity, work)
            torch._foreach_add_(parameters, moves, alpha=-work.lr)
    return total / sum(map(len, batches))


def _gradients(replica: _Replica, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the gradient of the mean loss, and the sum of the losses."""
    gradients: list[Tensor] = []
    total = torch.zeros((), dtype=torch.float64)
    pieces = -(-len(y) // _SAMPLES_AT_ONCE)
    for xs, ys in zip(x.tensor_split(pieces), y.tensor_split(pieces), strict=True):
        loss = F.cross_entropy(replica.model(xs), ys, reduction="sum")
        part = list(torch.autograd.grad(loss / len(y), replica.parameters))
        total += loss.detach()
        if gradients:
            torch._foreach_add_(gradients, part)
        else:
            gradients = part
    return gradients, total


def _direction(
    gradients: list[Tensor],
    parameters: Sequence[Tensor],
    first: Sequence[Tensor],
    velocity: list[Tensor],
    work: LocalWork,
) -> list[Tensor]:
    """Return what to step along: the gradients with FedProx's term and momentum.

    Both `gradients` and `velocity`, which is empty before the first step, are changed in place.
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


PER_CLIENT = Trainer("per client", train_per_client, evaluate_per_client, client_losses_per_client)
