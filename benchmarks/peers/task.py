"""One federation, model, schedule and data order, as every system in `engine.py` is given it."""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedcohort.references import load_reference
from fedcohort.training.models import MODELS


class WideCNN(nn.Module):
    """Conv 5×5 (32), pool, conv 5×5 (64), pool, FC 512, FC classes: the CNN of LEAF's FEMNIST."""

    def __init__(self, input_shape, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(input_shape[0], 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.fc1 = nn.Linear(64 * 4 * 4, 512)
        self.fc2 = nn.Linear(512, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


@dataclasses.dataclass(frozen=True)
class Task:
    """What to do.

    Attributes
    ----------
    x, y, x_test, y_test : Tensor
        Data, as the model is given them.
    order : int64 [T, K, n]
        The samples of the K clients of each round, in the order in which they are visited.
    state : dict of Tensor
        The first global model.
    model : str
        Its architecture, as `build_model` knows it.
    batch, lr
        Of local training, one pass.
    """

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    order: Tensor
    state: dict[str, Tensor]
    model: str
    batch: int
    lr: float

    def save(self, folder):
        for name in ("x", "y", "x_test", "y_test", "order"):
            np.save(folder / f"{name}.npy", getattr(self, name).numpy())
        torch.save(self.state, folder / "state.pt")
        rest = {"model": self.model, "batch": self.batch, "lr": self.lr}
        (folder / "task.json").write_text(json.dumps(rest))

    @classmethod
    def load(cls, folder):
        folder = Path(folder)
        arrays: dict[str, Any] = {
            name: torch.from_numpy(np.load(folder / f"{name}.npy"))
            for name in ("x", "y", "x_test", "y_test", "order")
        }
        rest = json.loads((folder / "task.json").read_text())
        return cls(**arrays, state=torch.load(folder / "state.pt"), **rest)

    def make_model(self):
        factory = load_reference(self.model, "model") if ":" in self.model else MODELS[self.model]
        model = factory(tuple(self.x.shape[1:]), 10)
        model.load_state_dict(self.state)
        return model

    def accuracy(self, state):
        """Return the share of test samples that a model gets right."""
        model = self.make_model().to(self.x_test.device)
        model.load_state_dict(state)
        with torch.no_grad():
            parts = zip(self.x_test.split(1000), self.y_test.split(1000), strict=True)
            right = sum(int((model(x).argmax(1) == y).sum()) for x, y in parts)
        return right / len(self.y_test)


def train_client(model, x, y, batch, lr):
    """Do what a text-book does: one pass of stochastic gradient descent over one client's data."""
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for xs, ys in zip(x.split(batch), y.split(batch), strict=True):
        optimiser.zero_grad()
        F.cross_entropy(model(xs), ys).backward()
        optimiser.step()


def run_loop(task, device="cpu"):
    """Train one client after the other and average; return seconds a round and the last model."""
    model = task.make_model().to(device)
    task = dataclasses.replace(
        task, **{name: getattr(task, name).to(device) for name in ("x", "y", "order")}
    )
    state = {name: values.to(device) for name, values in task.state.items()}
    seconds = []
    for cohort in task.order:
        began = time.perf_counter()
        total = {name: torch.zeros_like(values) for name, values in state.items()}
        for samples in cohort:
            model.load_state_dict(state)
            train_client(model, task.x[samples], task.y[samples], task.batch, task.lr)
            for name, values in model.state_dict().items():
                total[name] += values / len(cohort)
        state = total
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return seconds, {name: values.cpu() for name, values in state.items()}
