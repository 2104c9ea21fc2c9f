"""Local training by the compiled kernels: one client after the other on each core."""

import ctypes
import dataclasses
import functools

import numpy as np
import torch
from torch import Tensor, nn

from fedcohort.training.compiled.program import CTask, Program
from fedcohort.training.fused.layers import Convolution, Layer
from fedcohort.training.local import Parameters, Trained
from fedcohort.training.plan import Jobs, LocalWork, make_plan


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Trains jobs one by one on each worker, in compiled code; a `Trainer`.

    A job's result does not depend on the number of threads, nor on which of them did it.

    Attributes
    ----------
    layers : tuple of Layer
        What `read_chain` returned for the model.
    library : ctypes.CDLL
        The kernels.
    threads : int
        That train, each one job at a time.
    """

    layers: tuple[Layer, ...]
    library: ctypes.CDLL
    threads: int

    @functools.cached_property
    def program(self) -> Program:
        """The layout of the layers."""
        return Program(self.layers)

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
        plan = make_plan(jobs, pool, work)
        x, y = (values.contiguous() for values in data)
        before = {name: values.contiguous() for name, values in stacked.items()}
        # By NumPy: where a round is short, PyTorch's way to small tensors is much of it.
        empty = {n: np.empty((len(jobs), *v.shape[1:]), np.float32) for n, v in before.items()}
        local = {name: torch.from_numpy(values) for name, values in empty.items()}
        losses = np.empty(len(jobs))
        seen = plan.counts.numpy().sum(0)
        # The longest jobs first, so that no thread is left alone with one at the end.
        order = np.argsort(-seen, kind="stable")
        steps, _, batch = plan.sample.shape
        images = isinstance(self.layers[0], Convolution)
        channels, height, width = x.shape[1:] if images else (1, 1, x[0].numel())
        names = [[getattr(layer, kind) for layer in self.layers] for kind in ("weight", "bias")]
        arrays = [_pointers(values, kind) for values in (before, local) for kind in names]
        task = CTask(
            ctypes.addressof(self.program.chain),
            *(len(self.layers), self.program.parameters, self.program.samples_at_once),
            *(self.layers[-1].outputs, channels, height, width, len(jobs), steps, batch),
            *map(ctypes.addressof, arrays),
            *(jobs.model.data_ptr(), order.ctypes.data, x.data_ptr(), y.data_ptr()),
            *(plan.sample.data_ptr(), plan.counts.data_ptr(), losses.ctypes.data),
            *(0, work.lr, work.momentum, work.proximal),
        )
        with self.program.spaces(self.threads) as spaces:
            self.library.train(ctypes.byref(task), spaces, ctypes.c_int64(self.threads))
        return Trained(local, torch.from_numpy(losses / seen))


def _pointers(values: Parameters, names: list[str | None]) -> ctypes.Array[ctypes.c_void_p]:
    pointers = (ctypes.c_void_p * len(names))()
    pointers[:] = [None if name is None else values[name].data_ptr() for name in names]
    return pointers
