"""Many models of one architecture, as buffers on the device and the launches that train them."""

import torch
import triton
from torch import Tensor

from fedcohort.training.accelerators.triton_chain import kernels
from fedcohort.training.accelerators.triton_chain.convolution import ManyConvolutions
from fedcohort.training.accelerators.triton_chain.linear import ManyLinears
from fedcohort.training.accelerators.triton_chain.space import Batches, Space
from fedcohort.training.layers import Layer, Linear
from fedcohort.training.problem import LocalWork, Parameters


def channels_last(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return inputs [N, C, H, W] or [N, Q] as the kernels read them."""
    if x.dim() == 4:
        x = x.permute(0, 2, 3, 1)
    return x.to(dtype).contiguous()


class Network:
    """M models of one architecture, in a `Space`."""

    def __init__(self, layers: tuple[Layer, ...], space: Space) -> None:
        self.space = space
        self._classes = layers[-1].outputs
        self._layers = [_many(layers, place, space) for place in range(len(layers))]
        self._outputs = [space.empty(space.batch, layer.outputs) for layer in layers[:-1]]
        self._logits = space.empty(space.batch, self._classes, dtype=torch.float32)
        self._gradients = [
            space.empty(space.batch, layer.outputs) for layer in layers if space.training
        ]
        self.loss = space.zeros(dtype=torch.float64)
        self.right = space.zeros(dtype=torch.int64)

    def load(self, stacked: Parameters, model: Tensor) -> None:
        """Copy in, for each of the first m places, the one of the models that `model` [m] names."""
        for layer in self._layers:
            layer.load(stacked, model)

    def parameters(self, count: int) -> Parameters:
        """Return the first `count` models: dict of float32 [count, ...]."""
        return {k: v for layer in self._layers for k, v in layer.parameters(count).items()}

    def forward(self, batches: Batches) -> None:
        """Compute all outputs, and add up losses (and, without a backward pass, right answers)."""
        space = self.space
        flow = [batches.images, *self._outputs, self._logits]
        for layer, source, target in zip(self._layers, flow[:-1], flow[1:], strict=True):
            layer.forward(batches, source, target)
        kernels.cross_entropy[(space.models,)](
            self._logits,
            batches.labels,
            *batches.turn,
            self._gradients[-1] if space.training else self._logits,
            self.loss,
            self.right,
            space.models,
            space.batch,
            N=self._classes,
            NP=max(16, triton.next_power_of_2(self._classes)),
            SHARED=batches.shared,
            TRAIN=space.training,
            BM=min(64, max(16, triton.next_power_of_2(space.batch))),
        )

    def backward(self, batches: Batches, work: LocalWork) -> None:
        """Compute gradients from the last layer to the first, and step along them."""
        sources = [batches.images, *self._outputs]
        targets = [None, *self._gradients[:-1]]
        for place in reversed(range(len(self._layers))):
            self._layers[place].backward(
                batches, work, sources[place], self._gradients[place], targets[place]
            )
        batches.step.add_(1)


def _many(layers: tuple[Layer, ...], place: int, space: Space) -> ManyConvolutions | ManyLinears:
    layer, first = layers[place], place == 0
    if isinstance(layer, Linear):
        before = layers[place - 1] if place else layer
        # A convolution undoes its own ReLU; a fully connected layer's output shows where it was.
        masked = not first and isinstance(before, Linear) and before.relu
        return ManyLinears(layer, space, first=first, masked=masked)
    return ManyConvolutions(layer, space, first=first)
