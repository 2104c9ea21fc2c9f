"""Training and evaluation of small models by the compiled kernels, one model a core."""

import ctypes

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcohort.training.accelerators.c_chain.compiler import call
from fedcohort.training.accelerators.c_chain.layout import CTask, MemoryLayout, pointers_to
from fedcohort.training.layers import Convolution, Layer
from fedcohort.training.plan import make_plan
from fedcohort.training.problem import Data, Groups, LocalProblem, LocalWork, Parameters, Trained
from fedcohort.training.task import Task
from fedcohort.training.workers import worker_count

_SAMPLES_PER_PART = 512
_NOTHING = LocalWork(None, 0.0)


class CompiledModels:
    """Trains and measures models, chains of `layers`, one by one on each thread, in compiled code.

    A model's result does not depend on the number of threads, nor on which of them computed it.
    """

    def __init__(self, layers: tuple[Layer, ...]) -> None:
        self.layers = layers
        self._layout = MemoryLayout(layers)

    def train(self, problem: LocalProblem) -> Trained:
        """Train; see `Trainer`."""
        jobs, stacked, data, work = problem.jobs, problem.stacked, problem.data, problem.work
        plan = make_plan(jobs, problem.pool, work)
        # By NumPy: where a round is short, PyTorch's way to small tensors is much of it.
        shapes = {name: (len(jobs), *values.shape[1:]) for name, values in stacked.items()}
        empty = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
        local = {name: torch.from_numpy(values) for name, values in empty.items()}
        batches = plan.sample.numpy(), plan.counts.numpy()
        losses, _ = self._run("train", stacked, jobs.model.numpy(), batches, data, local, work)
        return Trained(local, torch.from_numpy(losses / batches[1].sum(0)))

    def evaluate(
        self,
        model: nn.Module,  # noqa: ARG002
        stacked: Parameters,
        data: Data,
        task: Task,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Return accuracy and mean loss of R global models on the same data, float64 [R] each."""
        samples = len(data[1])
        runs = len(next(iter(stacked.values())))
        places = np.arange(-(-samples // _SAMPLES_PER_PART) * _SAMPLES_PER_PART)
        parts = np.minimum(places, samples - 1).reshape(-1, _SAMPLES_PER_PART)
        counts = (places < samples).reshape(parts.shape).sum(1)
        batches = np.tile(parts, (1, runs, 1)), np.tile(counts, (1, runs))
        models = np.repeat(np.arange(runs), len(parts))
        losses, right = self._run("measure", stacked, models, batches, data, {}, _NOTHING)
        scores = (torch.from_numpy(v.reshape(runs, -1).sum(1) / samples) for v in (right, losses))
        accuracy, loss = scores
        return accuracy, loss

    def measure(
        self,
        model: nn.Module,  # noqa: ARG002
        stacked: Parameters,
        data: Data,
        groups: Groups,
        task: Task,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Return accuracy and mean loss on each group of samples; see `Trainer`."""
        counts, widest = groups.sizes.numpy(), int(groups.sizes.max())
        place = np.arange(widest) < counts[:, None]
        batches = np.zeros((1, len(counts), widest), np.int64), counts[None]
        batches[0][0, place] = groups.samples.numpy()
        models = np.zeros_like(counts) if groups.model is None else groups.model.numpy()
        losses, right = self._run("measure", stacked, models, batches, data, {}, _NOTHING)
        return torch.from_numpy(right / counts), torch.from_numpy(losses / counts)

    def _run(
        self,
        what: str,
        stacked: Parameters,
        models: NDArray[np.int64],
        batches: tuple[NDArray[np.int64], NDArray[np.int64]],
        data: Data,
        local: Parameters,
        work: LocalWork,
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Have the function `what` in chain.c do M jobs.

        `models` [M] says which of the `stacked` models each job takes, `local` where what they are
        trained to goes. `batches` are indices into the data [T, M, B] and how many of each count
        [T, M]. Returns the losses [M], summed over all samples of a job, and how many labels [M]
        were right, if that is measured.
        """
        samples, counts = map(np.ascontiguousarray, batches)
        steps, jobs, batch = samples.shape
        x, y = (values.contiguous() for values in data)
        before = {name: values.contiguous() for name, values in stacked.items()}
        losses, right = np.empty(jobs), np.empty(jobs, np.int64)
        # The longest jobs first, so that no thread is left alone with one at the end.
        order = np.argsort(-counts.sum(0), kind="stable")
        images = isinstance(self.layers[0], Convolution)
        channels, height, width = x.shape[1:] if images else (1, 1, x[0].numel())
        models_at = [
            pointers_to([values[name] if values and name else None for name in names])
            for values in (before, local)
            for names in ([la.weight for la in self.layers], [la.bias for la in self.layers])
        ]
        task = CTask(
            ctypes.addressof(self._layout.chain),
            *(len(self.layers), self._layout.parameters, self._layout.samples_at_once),
            *(self.layers[-1].outputs, channels, height, width, jobs, steps, batch),
            *map(ctypes.addressof, models_at),
            *(models.ctypes.data, order.ctypes.data, x.data_ptr(), y.data_ptr()),
            *(a.ctypes.data for a in (samples, counts, losses, right)),
            *(0, work.lr, work.momentum, work.proximal),
        )
        threads = min(worker_count(), jobs)
        with self._layout.spaces(threads) as spaces:
            call(what, task, spaces, threads)
        return losses, right
