# ruff: noqa: ARG005
"""Models as runs have them, without a run."""

import numpy as np
import torch
from torch import nn

from fedcohort.federation import Dataset
from fedcohort.training.models import build_model, check_built
from fedcohort.training.task import make_task

_RNG = np.random.default_rng(0)
IMAGES = Dataset(
    "images",
    _RNG.integers(0, 255, (20, 1, 8, 8)).astype(np.uint8),
    _RNG.integers(0, 3, 20),
    np.zeros((0, 1, 8, 8), np.uint8),
    np.zeros(0, np.int64),
    classes=3,
)


def module(forward=lambda self, x: self.fc(x.flatten(1)), prepare=lambda self: None):
    """Return a factory of a module with one layer and such a forward pass."""

    class Given(nn.Module):
        def __init__(self, shape, classes):
            super().__init__()
            self.fc = nn.Linear(int(np.prod(shape)), classes)
            prepare(self)

    Given.forward = forward
    return Given


def own(x):
    return x.flatten(1)


class WrittenByHand(nn.Module):
    """BatchNorm as text-books write it; what it keeps is an attribute, or is registered."""

    moving_mean: torch.Tensor

    def __init__(self, width, *, registered):
        super().__init__()
        if registered:
            self.register_buffer("moving_mean", torch.zeros(width))
        else:
            self.moving_mean = torch.zeros(width)

    def forward(self, x):
        if not torch.is_grad_enabled():
            return x - self.moving_mean
        mean = x.mean(0)
        self.moving_mean = (0.9 * self.moving_mean + 0.1 * mean).detach()
        return x - mean


def made(model, shape, classes, seed=0):
    """Return the model of that name for inputs of a shape, with the first weights of a seed."""
    x = np.random.default_rng(0).normal(size=(8, *shape)).astype(np.float32)
    y = np.arange(8) % classes
    data = Dataset("made", x, y, x[:0], y[:0], classes=classes)
    return build_model(model, data, make_task("classification", classes), seed)


def checked(model, dataset=IMAGES, task=None, seed=0):
    """Build and check a model as a study does before it begins."""
    task = task or make_task("classification", dataset.classes)
    built = (build_model(model, dataset, task, s) for s in (seed, seed, seed ^ 1))
    return check_built(model, tuple(built), dataset, task)
