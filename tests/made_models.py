"""Models as runs have them, without a run."""

import numpy as np

from fedcohort.federation import Dataset
from fedcohort.training.models import build_model
from fedcohort.training.task import make_task


def made(model, shape, classes, seed=0):
    """Return the model of that name for inputs of a shape, with the first weights of a seed."""
    x = np.random.default_rng(0).normal(size=(8, *shape)).astype(np.float32)
    y = np.arange(8) % classes
    data = Dataset("made", x, y, x[:0], y[:0], classes=classes)
    return build_model(model, data, make_task("classification", classes), seed)
