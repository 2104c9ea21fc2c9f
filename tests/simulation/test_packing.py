import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedcohort.federation import load_dataset
from fedcohort.simulation import RunConfig, packing
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.packing import packer
from fedcohort.training.architectures.resnet import ResNet

CPU = torch.device("cpu")


def test_groups_hold_whole_seeds_and_keep_within_the_limits():
    runs = [
        RunConfig(clients=10, cohort=3, rounds=50, selector=selector, seed=seed)
        for selector in ("dp3s", "fedavg", "pow-d")
        for seed in range(20)
    ]
    packs = packer(Materials(), CPU)(runs)
    assert [len(pack.configs) for pack in packs] == [32, 28]
    assert sorted(c.seed for c in packs[0].configs) == [s // 3 for s in range(32)]
    # Selectors that ask come first.
    assert [c.selector == "pow-d" for c in packs[0].configs] == [True] * 10 + [False] * 22
    assert packer(Materials(), CPU)(runs) == packs


def images():
    """2000 images of 28 by 28 pixels, all alike, and none to test on."""
    zeros = np.zeros((2000, 1, 28, 28), np.float32)
    return dataclasses.replace(
        load_dataset("digits"),
        x_train=zeros,
        y_train=np.arange(2000) % 10,
        x_test=zeros[:0],
        y_test=np.zeros(0, np.int64),
    )


def test_large_states_make_small_groups():
    big = RunConfig(clients=1000, cohort=10, dataset="digits", model="cnn", selector="clustered")
    pack = packer(Materials({"digits": images()}), CPU)
    packs = pack([dataclasses.replace(big, seed=s) for s in range(3)])
    assert [len(pack.configs) for pack in packs] == [1, 1, 1]


def test_the_cost_follows_the_model_and_the_steps():
    pack = packer(Materials({"digits": images()}), CPU)

    def cost(**settings):
        run = RunConfig(dataset="digits", clients=20, cohort=5, eval_samples=1, **settings)
        (found,) = pack([run])
        return found.cost

    assert 10 * cost(model="mlp") < cost(model="cnn") < cost(model="resnet8") / 3
    assert cost(model="cnn", epochs=4) == pytest.approx(4 * cost(model="cnn"), rel=0.01)
    # A step reads and writes a whole model, however few samples it has.
    assert cost(model="mlp", batch_size=1) > 10 * cost(model="mlp", batch_size=100)


def test_a_deep_model_is_evaluated_in_the_memory_of_its_widest_layers(monkeypatch):
    monkeypatch.setattr(packing, "_memory", lambda _device: 50e9)
    models = {
        name: lambda shape, classes, blocks=blocks: ResNet(shape, classes, blocks=blocks, width=16)
        for name, blocks in {"shallow": (1, 1), "deep": (4, 4)}.items()
    }
    pack = packer(Materials({"digits": images()}, models), CPU)

    def together(model):
        run = RunConfig(dataset="digits", clients=20, cohort=1, batch_size=1, model=model)
        return len(pack([dataclasses.replace(run, seed=seed) for seed in range(32)])[0].configs)

    # Trained on a sample at a time: what is evaluated decides.
    assert together("shallow") == together("deep") < 32


def test_where_a_few_clients_train_at_a_time_more_runs_fit(monkeypatch):
    def together(at_once):
        monkeypatch.setattr(packing, "_at_once", lambda *_: at_once)
        run = RunConfig(dataset="digits", clients=20, cohort=10, batch_size=50, model="resnet8")
        pack = packer(Materials({"digits": images()}), CPU)
        return len(pack([dataclasses.replace(run, seed=seed) for seed in range(32)])[0].configs)

    # Memory for eight runs' activations, some of which is for models or evaluation.
    one = packing._activation_bytes(Materials().model(RunConfig(model="resnet8")), images())[0]
    monkeypatch.setattr(packing, "_memory", lambda _device: 2 * 8 * 10 * 50 * one)
    assert together(None) < together(1000) < 8
    assert together(10) == 32


def test_a_rule_that_keeps_little_of_an_update_has_a_small_state():
    pack = packer(Materials({"digits": images()}), CPU)

    def together(selector):
        run = RunConfig(dataset="digits", clients=1000, cohort=10, model="cnn", selector=selector)
        return [len(p.configs) for p in pack([dataclasses.replace(run, seed=s) for s in range(3)])]

    assert together("delta") == together("hics") == [3]
    assert together("divfl") == [1, 1, 1]


class Listed(nn.Module):
    """Parameters without layers, as PyTorch's lists of them are."""

    def __init__(self, shape, classes):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(classes, math.prod(shape)))])

    def forward(self, x):
        return F.linear(x.flatten(1), self.weights[0])


class Returning(nn.Module):
    """Layers that return something else than a tensor."""

    def __init__(self, shape, classes):
        super().__init__()
        self.rnn, self.last = nn.GRU(shape[-1], 8), nn.Linear(8, classes)
        self.parts = nn.ModuleList()
        for kind in (lambda x: {"x": x}, lambda x: [x, "x"], lambda _: None):
            self.parts.append(Calling(kind))

    def forward(self, x):
        for part in self.parts:
            part(x)
        rows = x[:, 0].transpose(0, 1)
        packed = nn.utils.rnn.pack_padded_sequence(rows, [len(rows)] * len(x))
        return self.last(nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0])[0][-1])


class Calling(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def scripted(shape, classes):
    return torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes)))


def untracked(shape, classes):
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), classes),
        nn.BatchNorm1d(classes, track_running_stats=False),
    )


@pytest.mark.parametrize("model", [Listed, Returning, scripted, untracked])
def test_the_memory_of_any_model_can_be_estimated(model):
    run = RunConfig(clients=10, cohort=3, rounds=1, model="own")
    (pack,) = packer(Materials(models={"own": model}), CPU)([run])
    assert pack.cost > 0
