"""Local training of one client at a time, several clients beside each other.

For models whose convolutions are large enough to keep a core busy: oneDNN's kernels on
channels-last tensors, one model a worker, no optimiser object, no number read back before the end.
"""

import copy
import dataclasses
import functools
import queue
import weakref
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedcohort.training.chain import forward, read_chain
from fedcohort.training.descent import direction
from fedcohort.training.fused.layers import Layer
from fedcohort.training.local import Parameters, Trained
from fedcohort.training.plan import Jobs, LocalWork, make_plan
from fedcohort.training.workers import Workers

# Larger batches are computed in pieces whose gradients are added: activations of more samples leave
# the cache, and memory that the system must hand out anew costs more than the arithmetic. A chain
# takes care of its largest activations itself.
_SAMPLES_AT_ONCE = {"chain": 640, "any": 192}


@dataclasses.dataclass(frozen=True)
class PerClient:
    """Trains jobs one by one on each worker; a `Trainer`.

    A job's result depends on the number of threads a worker has, in the last bits, and not on how
    many workers there are or which of them did it.

    Attributes
    ----------
    workers : Workers
        Who computes.
    """

    workers: Workers

    def __call__(
        self,
        model: nn.Module,
        stacked: Parameters,
        jobs: Jobs,
        data: tuple[Tensor, Tensor],
        pool: Tensor,
        work: LocalWork,
    ) -> Trained:
        """Train; see `Trainer`."""
        plan = make_plan(jobs, pool, work)
        counts = plan.counts
        names = [name for name, _ in model.named_parameters()]
        local = {n: v.new_empty(len(jobs), *v.shape[1:]) for n, v in stacked.items()}
        replicas = replicas_of(model, data[0].shape[1:], self.workers.count)
        starts, steps = jobs.model.tolist(), counts.T.tolist()
        losses = torch.empty(len(jobs), dtype=torch.float64)

        def train(j: int) -> None:
            replica = replicas.get()
            try:
                first = [stacked[name][starts[j]] for name in names]
                replica.load(first)
                batches = [plan.sample[t, j, :n] for t, n in enumerate(steps[j]) if n]
                losses[j] = _descend(replica, first, data, batches, work)
                for name, values in zip(names, replica.parameters, strict=True):
                    local[name][j] = values.detach()
            finally:
                replicas.put(replica)

        # The longest jobs first, so that no worker is left alone with one at the end.
        order = counts.sum(0).argsort(descending=True, stable=True)
        self.workers.map(train, order.tolist())
        return Trained(local, losses)


@dataclasses.dataclass(frozen=True)
class Replica:
    """One worker's own copy of a model.

    Attributes
    ----------
    parameters : list of Tensor
        In the model's order; convolutions are channels-last.
    forward : callable
        From inputs [B, ...] to logits [B, classes].
    samples_at_once : int
        Of the pieces that a batch is computed in.
    """

    parameters: list[Tensor]
    forward: Callable[[Tensor], Tensor]
    samples_at_once: int

    @torch.no_grad()
    def load(self, values: Sequence[Tensor]) -> None:
        """Take over a model's parameters."""
        torch._foreach_copy_(self.parameters, list(values))


def replicas_of(
    model: nn.Module, input_shape: Sequence[int], count: int
) -> "queue.SimpleQueue[Replica]":
    """Return copies of a model, at least `count` of them, for workers to take and put back.

    They are kept as long as the model: making them anew each time would cost the memory of their
    parameters and the tracing of the model's code.
    """
    replicas, dtype = _replicas.get(model, (None, None))
    if replicas is None or replicas.qsize() < count or dtype != next(model.parameters()).dtype:
        layers = read_chain(model, input_shape)
        replicas = queue.SimpleQueue()
        for _ in range(count):
            replicas.put(_replica(model, layers))
        _replicas[model] = replicas, next(model.parameters()).dtype
    return replicas


_replicas: weakref.WeakKeyDictionary[
    nn.Module, tuple["queue.SimpleQueue[Replica]", torch.dtype]
] = weakref.WeakKeyDictionary()


def _replica(model: nn.Module, layers: tuple[Layer, ...] | None) -> Replica:
    own = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    named = dict(own.named_parameters())
    if layers is None:
        return Replica(list(named.values()), own, _SAMPLES_AT_ONCE["any"])
    through = functools.partial(forward, layers, named)
    return Replica(list(named.values()), through, _SAMPLES_AT_ONCE["chain"])


def _descend(
    replica: Replica,
    first: Sequence[Tensor],
    data: tuple[Tensor, Tensor],
    batches: Sequence[Tensor],
    work: LocalWork,
) -> Tensor:
    """Take one step of gradient descent a batch; return the mean loss a sample."""
    x, y = data
    parameters = replica.parameters
    velocity: list[Tensor] = []
    total = torch.zeros((), dtype=torch.float64)
    for batch in batches:
        gradients, loss = _gradients(replica, x[batch], y[batch])
        total += loss
        moves = direction(gradients, parameters, first, velocity, work)
        with torch.no_grad():
            torch._foreach_add_(parameters, moves, alpha=-work.lr)
    return total / sum(map(len, batches))


def _gradients(replica: Replica, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the gradient of the mean loss, and the sum of the losses."""
    gradients: list[Tensor] = []
    total = torch.zeros((), dtype=torch.float64)
    pieces = -(-len(y) // replica.samples_at_once)
    for xs, ys in zip(x.tensor_split(pieces), y.tensor_split(pieces), strict=True):
        loss = F.cross_entropy(replica.forward(xs), ys, reduction="sum")
        part = list(torch.autograd.grad(loss / len(y), replica.parameters))
        total += loss.detach()
        if gradients:
            torch._foreach_add_(gradients, part)
        else:
            gradients = part
    return gradients, total
