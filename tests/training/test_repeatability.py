"""What a factory builds must be the same each time, and alike for every seed, but for weights."""

import threading

import numpy as np
import pytest
import torch
from made_models import IMAGES, WrittenByHand, checked, module, own
from torch import nn

from fedcohort.errors import InvalidModelError
from fedcohort.training import models
from fedcohort.training.architectures.resnet import ResNet
from fedcohort.training.models import build_model
from fedcohort.training.task import make_task

TASK = make_task("classification", 3)
GENERATOR = torch.Generator().manual_seed(0)


def buffer(make, **options):
    return lambda self: self.register_buffer("b", make(), **options)


def replaced(draw):
    def prepare(self):
        with torch.no_grad():
            self.fc.weight.copy_(draw())

    return prepare


def growing():
    made = []

    def factory(shape, classes):  # noqa: ARG001
        made.append(None)
        wide = 4 * len(made)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, wide), nn.Linear(wide, classes))

    return factory


def by_seed(shape, classes):  # noqa: ARG001
    wide = int(torch.randint(100, 10_000, ()))
    return nn.Sequential(nn.Flatten(), nn.Linear(64, wide), nn.Linear(wide, classes))


UNEQUAL = {
    "whole numbers": (
        module(lambda s, x: s.fc(own(x)[:, s.b]), buffer(lambda: torch.randperm(64))),
        "its 'b' depends on the seed",
    ),
    "complex numbers": (
        module(
            lambda s, x: s.fc((own(x) * s.b).abs()),
            buffer(lambda: torch.randn(64, dtype=torch.complex64)),
        ),
        "its 'b' depends on the seed",
    ),
    "not kept": (
        module(lambda s, x: s.fc(own(x) * s.b), buffer(lambda: torch.randn(64), persistent=False)),
        "its 'b' depends on the seed",
    ),
    "an attribute": (
        module(lambda s, x: s.fc(own(x) * s.w), lambda s: setattr(s, "w", torch.randn(64))),
        "its 'w' depends on the seed",
    ),
    "a number": (
        module(lambda s, x: s.fc(own(x) * s.w), lambda s: setattr(s, "w", float(torch.rand(())))),
        "something that is neither .* depends on the seed",
    ),
    "NumPy's chance": (
        module(prepare=replaced(lambda: torch.from_numpy(np.random.randn(3, 64)))),  # noqa: NPY002
        "'fc.weight' are others each time",
    ),
    "its own generator": (
        module(prepare=replaced(lambda: torch.randn(3, 64, generator=GENERATOR))),
        "'fc.weight' are others each time",
    ),
    "shapes by call": (growing(), "another shape when it is built"),
    "shapes by seed": (by_seed, "another shape when the seed changes"),
}


@pytest.mark.parametrize("case", UNEQUAL)
def test_a_factory_that_builds_unequal_models_is_refused(case):
    factory, words = UNEQUAL[case]
    with pytest.raises(InvalidModelError, match=words) as refusal:
        checked(factory)
    assert str(refusal.value).startswith("Model '")
    assert str(refusal.value).count("\n") == 0


def counting(self, x):
    self.calls += 1
    self.b += 1
    return self.fc(own(x))


def filled(self, x):
    if self.b is None:
        self.b = torch.linspace(0, 1, 64)
    return self.fc(own(x) * self.b)


EQUAL = {
    "counts that change nothing": module(
        counting, lambda s: (setattr(s, "calls", 0), s.register_buffer("b", torch.tensor(0)))
    ),
    "a table that is filled": module(filled, buffer(lambda: None, persistent=False)),
    "a sparse table": module(
        lambda s, x: s.fc((s.b @ own(x).T).T),
        buffer(lambda: torch.eye(64).to_sparse(), persistent=False),
    ),
    "statistics in buffers": module(
        lambda s, x: s.fc(s.norm(own(x))),
        lambda s: setattr(s, "norm", WrittenByHand(64, registered=True)),
    ),
    "BatchNorm": lambda shape, classes: ResNet(
        shape, classes, blocks=(1, 1), width=8, norm="batch"
    ),
    "a fixed order": module(
        lambda s, x: s.fc(own(x)[:, s.b]),
        buffer(lambda: torch.randperm(64, generator=torch.Generator().manual_seed(1))),
    ),
    "random numbers that are kept": module(
        lambda s, x: s.fc(own(x) * s.b), buffer(lambda: torch.randn(64))
    ),
    "an attribute that is filled": module(lambda s, x: setattr(s, "x", x) or s.fc(own(x))),
    "attention with dropout": module(
        lambda s, x: s.fc(s.a(x[:, 0]).flatten(1)),
        lambda s: setattr(s, "a", nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)),
    ),
    "spectral normalisation": module(
        prepare=lambda s: nn.utils.parametrizations.spectral_norm(s.fc)
    ),
}


@pytest.mark.parametrize("case", EQUAL)
def test_a_factory_that_builds_equal_models_is_taken(case):
    checked(EQUAL[case])


def test_a_module_that_a_factory_gives_again_and_again_is_not_touched():
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    factory = lambda shape, classes: net  # noqa: E731, ARG005
    checked(factory)
    built = build_model(factory, IMAGES, TASK, 0)
    assert built is not net
    assert torch.equal(built[1].weight, net[1].weight)
    assert built[1].weight.data_ptr() != net[1].weight.data_ptr()


def test_one_thread_at_a_time_lends_pytorchs_generator():
    taken = []

    def elsewhere():
        taken.append(models._GLOBAL_GENERATOR.acquire(blocking=False))

    def factory(shape, classes):  # noqa: ARG001
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

    build_model(factory, IMAGES, TASK, 0)
    assert taken == [False]


def test_models_are_built_with_one_thread_whoever_asks():
    threads = []

    def factory(shape, classes):  # noqa: ARG001
        threads.append(torch.get_num_threads())
        return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        build_model(factory, IMAGES, TASK, 0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert threads == [1]
