"""Local training and evaluation by the fused kernels.

The launches of one step are recorded once as a CUDA graph and replayed for every step of every
round; batches are read from the data set by index, and nothing waits for the host.
"""

import dataclasses

import torch
from torch import Tensor, nn

from fedcohort.training.accelerators.triton_chain.network import Network, channels_last
from fedcohort.training.accelerators.triton_chain.space import Batches, Space
from fedcohort.training.accelerators.triton_chain.tiles import batch_class
from fedcohort.training.layers import Layer
from fedcohort.training.plan import Plan, make_plan, to_device
from fedcohort.training.problem import (
    Data,
    Jobs,
    LocalProblem,
    LocalWork,
    Parameters,
    Trained,
    joined,
)
from fedcohort.training.task import Task

_KEPT_STEPS = 12
_EVALUATION_BYTES = 1 << 30
_EVALUATED_AT_ONCE = 2048


class FusedModels:
    """Trains and evaluates many models of one architecture, a chain of `layers`.

    What is multiplied is of `dtype`, bfloat16 or float32; master weights are float32 always.
    """

    def __init__(self, layers: tuple[Layer, ...], dtype: torch.dtype) -> None:
        self._layers, self._dtype = layers, dtype
        self._images: dict[int, tuple[Tensor, Tensor]] = {}
        self._steps: list[_RecordedStep] = []
        self._evaluators: dict[tuple[int, int], Network] = {}

    def train(self, problem: LocalProblem) -> Trained:
        """Train; see `Trainer`."""
        # Tiles are chosen by the size of a batch, which must be the job's own, not its neighbours'.
        classes = batch_class(problem.jobs.size, problem.work.batch_size)
        kinds = sorted(set(classes.tolist()))
        if len(kinds) == 1:
            return self._train_alike(problem)
        members = [torch.nonzero(classes == kind).flatten() for kind in kinds]
        apart = joined([self._train_alike(problem.only(own)) for own in members])
        back = to_device(torch.cat(members).argsort(), apart.losses.device)
        return Trained({n: v[back] for n, v in apart.parameters.items()}, apart.losses[back])

    def _train_alike(self, problem: LocalProblem) -> Trained:
        """Train jobs whose batches are of one class, as many at once as memory has room for."""
        jobs = problem.jobs
        at_once = self._jobs_at_once(jobs, problem.data[0].device, problem.work)
        starts = range(0, len(jobs), at_once)
        return joined([self._train_together(problem.only(slice(i, i + at_once))) for i in starts])

    def _train_together(self, problem: LocalProblem) -> Trained:
        plan = make_plan(problem.jobs, problem.pool, problem.work)
        images = self._inputs(problem.data[0])
        step = self._step(plan, images, problem.data[1], problem.work)
        model_of = to_device(problem.jobs.model, images.device)
        return step.run(problem.stacked, model_of, plan, problem.work.lr)

    def _step(self, plan: Plan, images: Tensor, labels: Tensor, work: LocalWork) -> "_RecordedStep":
        """Return buffers that are large enough, but not much too large; new ones if need be."""
        steps, count, batch = plan.sample.shape
        for place, step in enumerate(self._steps):
            if step.suits(steps, count, batch, images, work):
                # The one used last stands last; the first is the first to go.
                self._steps.append(self._steps.pop(place))
                return step
        del self._steps[: max(0, len(self._steps) - _KEPT_STEPS + 1)]
        space = Space(
            count + count // 8,
            batch,
            self._dtype,
            images.device,
            momentum=work.momentum > 0,
            proximal=work.proximal > 0,
        )
        # Steps cost little room, and clients with more work than others may yet get more.
        step = _RecordedStep(self._layers, space, images, labels, 2 * steps, work)
        self._steps.append(step)
        return step

    def _jobs_at_once(self, jobs: Jobs, device: torch.device, work: LocalWork) -> int:
        if device.type != "cuda":
            return len(jobs)
        widest = int(jobs.size.max())
        batch = widest if work.batch_size is None else min(work.batch_size, widest)
        if any(step.has_room(len(jobs), batch) for step in self._steps):
            return len(jobs)
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        held = sum(step.bytes for step in self._steps)
        return max(1, int((free + held) * 0.6) // bytes_per_model(self._layers, batch, self._dtype))

    def _inputs(self, x: Tensor) -> Tensor:
        """Return a data set as the kernels read it, converted once."""
        kept = self._images.get(x.data_ptr())
        # The tensor itself is kept too, so that no other can take its place in memory.
        if kept is None:
            kept = self._images[x.data_ptr()] = x, channels_last(x, self._dtype)
        return kept[1]

    @torch.no_grad()
    def evaluate(
        self,
        model: nn.Module,  # noqa: ARG002
        stacked: Parameters,
        data: Data,
        task: Task,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Return accuracy and mean loss of R models on the same data, float64 [R] each."""
        images, labels = self._inputs(data[0]), data[1]
        # Kernels are compiled anew for a batch that 16 does not divide; models, not samples, make
        # room for others, so that a model's loss does not depend on them.
        batch = min(_EVALUATED_AT_ONCE, -(-len(labels) // 16) * 16)
        values = sum(layer.outputs for layer in self._layers) * batch * self._dtype.itemsize
        at_once = max(1, _EVALUATION_BYTES // values)
        runs = range(len(next(iter(stacked.values()))))
        parts = [
            self._evaluate(
                {n: v[part.start : part.stop] for n, v in stacked.items()}, images, labels, batch
            )
            for part in (runs[i : i + at_once] for i in range(0, len(runs), at_once))
        ]
        accuracy, loss = (torch.cat(scores) for scores in zip(*parts, strict=True))
        return accuracy, loss

    def _evaluate(
        self, stacked: Parameters, images: Tensor, labels: Tensor, batch: int
    ) -> tuple[Tensor, Tensor]:
        runs, total, device = len(next(iter(stacked.values()))), len(labels), images.device
        network = self._evaluators.get((runs, batch))
        if network is None:
            space = Space(runs, batch, self._dtype, device, training=False)
            network = self._evaluators[runs, batch] = Network(self._layers, space)
        network.load(stacked, torch.arange(runs, device=device))
        network.loss.zero_()
        network.right.zero_()
        step = torch.zeros(1, dtype=torch.int32, device=device)
        rate = torch.zeros(1, device=device)  # nothing descends
        for start in range(0, total, batch):
            size = min(batch, total - start)
            sample = torch.arange(start, start + batch, device=device, dtype=torch.int32)
            count = torch.full((1, runs), size, device=device, dtype=torch.int32)
            network.forward(Batches(images, labels, sample.clamp(max=total - 1), count, step, rate))
        return network.right.double() / total, network.loss / total


class _RecordedStep:
    """The buffers and the recorded step of a number of jobs of one shape."""

    def __init__(
        self,
        layers: tuple[Layer, ...],
        space: Space,
        images: Tensor,
        labels: Tensor,
        steps: int,
        work: LocalWork,
    ) -> None:
        def integers(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.int32, device=space.device)

        self.bytes = space.models * bytes_per_model(layers, space.batch, space.dtype)
        self._work = dataclasses.replace(work, lr=0.0)
        self._network = Network(layers, space)
        self._batches = Batches(
            images,
            labels,
            integers(steps, space.models, space.batch),
            integers(steps, space.models),
            integers(1),
            torch.zeros(1, device=space.device),
        )
        self._graph: torch.cuda.CUDAGraph | None = None
        if space.device.type == "cuda":
            self._step()  # With all counts 0: nothing moves, but every kernel is compiled.
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._step()

    def suits(self, steps: int, count: int, batch: int, images: Tensor, work: LocalWork) -> bool:
        """Tell whether jobs of this shape fit, without leaving half of the room empty."""
        most, models, _ = self._batches.sample.shape
        fits = self.has_room(count, batch) and models <= 2 * count + 8 and steps <= most
        alike = dataclasses.replace(work, lr=0.0) == self._work
        return fits and alike and images is self._batches.images

    def has_room(self, count: int, batch: int) -> bool:
        """Tell whether so many jobs fit into the buffers."""
        _, models, width = self._batches.sample.shape
        return count <= models and batch == width

    def _step(self) -> None:
        self._network.forward(self._batches)
        self._network.backward(self._batches, self._work)

    @torch.no_grad()
    def run(self, stacked: Parameters, model: Tensor, plan: Plan, lr: float) -> Trained:
        """Train jobs that start from the models `model` int64 [m] of `stacked`."""
        steps, count, _ = plan.sample.shape
        samples = plan.counts
        self._batches.sample[:steps, :count] = plan.sample.int()
        self._batches.count.zero_()
        self._batches.count[:steps, :count] = samples.int()
        self._batches.step.zero_()
        self._batches.lr.fill_(lr)
        self._network.load(stacked, model)
        self._network.loss.zero_()
        for _ in range(steps):
            if self._graph is None:
                self._step()
            else:
                self._graph.replay()
        losses = self._network.loss[:count] / samples.sum(0)
        return Trained(self._network.parameters(count), losses)


def bytes_per_model(layers: tuple[Layer, ...], batch: int, dtype: torch.dtype) -> int:
    """Estimate the memory that one model takes in training."""
    # Masters, velocities, working copies, and the local models that are handed on.
    weights = sum(layer.weights for layer in layers) * (3 * 4 + dtype.itemsize)
    # Outputs, gradients and winners; and gradients before the pool, in padded channels.
    outputs = sum(layer.outputs for layer in layers) * (2 * dtype.itemsize + 1)
    dense = sum(6 * layer.outputs * dtype.itemsize for layer in layers[:-1])
    return weights + batch * (outputs + dense)
