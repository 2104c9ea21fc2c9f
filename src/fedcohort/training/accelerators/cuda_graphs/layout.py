"""A model's parameters as one row of numbers, convolutions channels-last."""

import torch
from torch import Tensor, nn

from fedcohort.training.problem import Parameters


def _ordered(values: Tensor) -> Tensor:
    """View a parameter [..., O, I, H, W] so that channels come last; others stay as they are."""
    return values.movedim(-3, -1) if values.dim() >= 4 else values


class FlatLayout:
    """Where each parameter of a model stands in one row of numbers.

    Parameters
    ----------
    model : nn.Module
        The architecture.
    """

    def __init__(self, model: nn.Module) -> None:
        self.shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        self.size = sum(p.numel() for p in model.parameters())

    def flatten(self, stacked: Parameters) -> Tensor:
        """Return models [R, ...] as rows, float32 [R, n]."""
        rows = []
        for name, shape in self.shapes.items():
            values = stacked[name]
            rows.append((_ordered(values) if len(shape) == 4 else values).flatten(1))
        return torch.cat(rows, dim=1)

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
            if len(shape) == 4:
                outputs, inputs, height, width = shape
                own = own.view(-1, outputs, height, width, inputs).movedim(-1, -3)
                found[name] = own
            else:
                found[name] = own.view(-1, *shape)
        return found
