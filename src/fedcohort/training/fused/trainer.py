"""Local training and evaluation by the fused kernels.

The launches of one step are recorded once as a CUDA graph and replayed for every step of every
round; batches are read from the data set by index, and nothing waits for the host.
"""

import torch
from torch import Tensor, nn

from fedcohort.training.fused.layers import Layer
from fedcohort.training.fused.network import Network, channels_last
from fedcohort.training.fused.space import Batches, Space
from fedcohort.training.local import Parameters, Trained, joined
from fedcohort.training.plan import Jobs, LocalWork, Plan, make_plan, to_device

_KEPT_PROGRAMS = 12
_EVALUATION_BYTES = 1 << 30


class FusedTrainer:
    """Trains and evaluates many models of one architecture; a `Trainer`.

    Parameters
    ----------
    layers : tuple of Layer
        From `recognise`.
    dtype : torch.dtype
        What is multiplied: bfloat16 or float32. Master weights are float32 always.
    """

    def __init__(self, layers: tuple[Layer, ...], dtype: torch.dtype) -> None:
        self._layers, self._dtype = layers, dtype
        self._images: dict[int, tuple[Tensor, Tensor]] = {}
        self._programs: list[_Program] = []
        self._evaluators: dict[tuple[int, int], Network] = {}

    def __call__(
        self,
        model: nn.Module,  # noqa: ARG002
        stacked: Parameters,
        jobs: Jobs,
        data: tuple[Tensor, Tensor],
        pool: Tensor,
        work: LocalWork,
    ) -> Trained:
        """Train; see `Trainer`."""
        at_once = self._jobs_at_once(jobs, data[0].device, work)
        parts = [
            self._train(stacked, jobs[i : i + at_once], data, pool, work)
            for i in range(0, len(jobs), at_once)
        ]
        return joined(parts)

    def _train(
        self,
        stacked: Parameters,
        jobs: Jobs,
        data: tuple[Tensor, Tensor],
        pool: Tensor,
        work: LocalWork,
    ) -> Trained:
        plan = make_plan(jobs, pool, work)
        images = self._inputs(data[0])
        program = self._program(plan, images, data[1], work)
        return program.run(stacked, to_device(jobs.model, images.device), plan)

    def _program(self, plan: Plan, images: Tensor, labels: Tensor, work: LocalWork) -> "_Program":
        """Return buffers that are large enough, but not much too large; new ones if need be."""
        steps, count, batch = plan.sample.shape
        for place, program in enumerate(self._programs):
            if program.suits(steps, count, batch, images, work):
                # The one used last stands last; the first is the first to go.
                self._programs.append(self._programs.pop(place))
                return program
        del self._programs[: max(0, len(self._programs) - _KEPT_PROGRAMS + 1)]
        space = Space(
            count + count // 8,
            batch,
            self._dtype,
            images.device,
            momentum=work.momentum > 0,
            proximal=work.proximal > 0,
        )
        # Steps cost little room, and clients with more work than others may yet get more.
        program = _Program(self._layers, space, images, labels, 2 * steps, work)
        self._programs.append(program)
        return program

    def _jobs_at_once(self, jobs: Jobs, device: torch.device, work: LocalWork) -> int:
        if device.type != "cuda":
            return len(jobs)
        widest = int(jobs.size.max())
        batch = widest if work.batch_size is None else min(work.batch_size, widest)
        if any(program.has_room(len(jobs), batch) for program in self._programs):
            return len(jobs)
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        held = sum(program.bytes for program in self._programs)
        return max(1, int((free + held) * 0.6) // bytes_a_model(self._layers, batch, self._dtype))

    def _inputs(self, x: Tensor) -> Tensor:
        """Return a data set as the kernels read it, converted once."""
        kept = self._images.get(x.data_ptr())
        # The tensor itself is kept too, so that no other can take its place in memory.
        if kept is None:
            kept = self._images[x.data_ptr()] = x, channels_last(x, self._dtype)
        return kept[1]

    @torch.no_grad()
    def evaluate(self, stacked: Parameters, data: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return accuracy and mean loss of R models on the same data, float64 [R] each.

        Parameters
        ----------
        stacked : dict of float32 [R, ...]
            Models.
        data : (float32 [N, ...], int64 [N])
            Inputs and labels.
        """
        images, labels = self._inputs(data[0]), data[1]
        runs, total, device = len(next(iter(stacked.values()))), len(labels), images.device
        widest = sum(layer.outputs for layer in self._layers) * self._dtype.itemsize
        pieces = -(-total * widest * runs // _EVALUATION_BYTES)
        # Kernels are compiled anew for a batch that 16 does not divide.
        batch = -(-total // (16 * pieces)) * 16
        network = self._evaluators.get((runs, batch))
        if network is None:
            space = Space(runs, batch, self._dtype, device, training=False)
            network = self._evaluators[runs, batch] = Network(self._layers, space)
        network.load(stacked)
        network.loss.zero_()
        network.right.zero_()
        step = torch.zeros(1, dtype=torch.int32, device=device)
        for start in range(0, total, batch):
            size = min(batch, total - start)
            sample = torch.arange(start, start + batch, device=device, dtype=torch.int32)
            count = torch.full((1, runs), size, device=device, dtype=torch.int32)
            network.forward(Batches(images, labels, sample.clamp(max=total - 1), count, step))
        return network.right.double() / total, network.loss / total


class _Program:
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

        self.bytes = space.models * bytes_a_model(layers, space.batch, space.dtype)
        self._work = work
        self._network = Network(layers, space)
        self._batches = Batches(
            images,
            labels,
            integers(steps, space.models, space.batch),
            integers(steps, space.models),
            integers(1),
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
        return fits and work == self._work and images is self._batches.images

    def has_room(self, count: int, batch: int) -> bool:
        """Tell whether so many jobs fit into the buffers."""
        _, models, width = self._batches.sample.shape
        return count <= models and batch == width

    def _step(self) -> None:
        self._network.forward(self._batches)
        self._network.backward(self._batches, self._work)

    @torch.no_grad()
    def run(self, stacked: Parameters, model: Tensor, plan: Plan) -> Trained:
        """Train jobs that start from the models `model` int64 [m] of `stacked`."""
        steps, count, _ = plan.sample.shape
        samples = plan.counts
        self._batches.sample[:steps, :count] = plan.sample.int()
        self._batches.count.zero_()
        self._batches.count[:steps, :count] = samples.int()
        self._batches.step.zero_()
        self._network.load(stacked, model)
        self._network.loss.zero_()
        for _ in range(steps):
            if self._graph is None:
                self._step()
            else:
                self._graph.replay()
        losses = self._network.loss[:count] / samples.sum(0)
        return Trained(self._network.parameters(count), losses)


def bytes_a_model(layers: tuple[Layer, ...], batch: int, dtype: torch.dtype) -> int:
    """Estimate the memory that one model takes in training."""
    # Masters, velocities, working copies, and the local models that are handed on.
    weights = sum(layer.weights for layer in layers) * (3 * 4 + dtype.itemsize)
    # Outputs, gradients and winners; and gradients before the pool, in padded channels.
    outputs = sum(layer.outputs for layer in layers) * (2 * dtype.itemsize + 1)
    dense = sum(6 * layer.outputs * dtype.itemsize for layer in layers[1:-1])
    return weights + batch * (outputs + dense)
