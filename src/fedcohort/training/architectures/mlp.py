"""Fully connected networks, for data that are not images."""

import itertools

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class MLP(nn.Module):
    """Fully connected layers with ReLUs between them.

    Parameters
    ----------
    input_shape : tuple of int
        Of one sample, which is flattened.
    classes : int
        Outputs.
    hidden : int
        Width of the hidden layers.
    layers : int
        How many hidden layers there are.
    """

    def __init__(
        self, input_shape: tuple[int, ...], classes: int, hidden: int = 64, layers: int = 1
    ) -> None:
        super().__init__()
        if hidden < 1 or layers < 1:
            raise ValueError("hidden and layers must be at least 1")
        widths = [int(torch.Size(input_shape).numel()), *[hidden] * layers, classes]
        for place, (inputs, outputs) in enumerate(itertools.pairwise(widths), start=1):
            self.add_module(f"fc{place}", nn.Linear(inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, classes] of inputs [B, ...]."""
        *hidden, last = self.children()
        x = x.flatten(1)
        for layer in hidden:
            x = F.relu(layer(x))
        return last(x)  # type: ignore[no-any-return]
