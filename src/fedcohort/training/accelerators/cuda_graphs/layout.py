"""A model's parameters as one row of numbers, convolutions channels-last if it takes that."""

import torch
from torch import Tensor, nn

from fedcohort.training.problem import Parameters


class FlatLayout:
    """Where each parameter of a model stands in one row of numbers."""

    def __init__(self, model: nn.Module, channels_last: bool) -> None:
        self.channels_last = channels_last
        self.shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        self.size = sum(p.numel() for p in model.parameters())

    def flatten(self, stacked: Parameters) -> Tensor:
        """Return models [R, ...] as rows, float32 [R, n]."""
        values = (stacked[name] for name in self.shapes)
        turned = 5 if self.channels_last else None
        rows = [v.movedim(-3, -1) if v.dim() == turned else v for v in values]
        return torch.cat([row.reshape(len(row), -1) for row in rows], dim=1)

    def views(self, row: Tensor) -> Parameters:
        """Return the parameters of one row [n], as views of it."""
        return {name: values[0] for name, values in self.unflatten(row[None]).items()}

    def unflatten(self, rows: Tensor) -> Parameters:
        """Return the parameters of rows [M, n], as views of them: dict of [M, ...]."""
        found: Parameters = {}
        start = 0
        for name, shape in self.shapes.items():
            size = int(torch.Size(shape).numel())
            own = rows[:, start : start + size]
            start += size
            if len(shape) == 4 and self.channels_last:
                outputs, inputs, height, width = shape
                found[name] = own.view(-1, outputs, height, width, inputs).movedim(-1, -3)
            else:
                found[name] = own.view(-1, *shape)
        return found
