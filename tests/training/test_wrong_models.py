# ruff: noqa: ARG005
"""Models that cannot be trained right are refused in one sentence, before anything is made."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedcohort.errors import InvalidInputError
from fedcohort.federation import Dataset
from fedcohort.training.models import build_model
from fedcohort.training.task import make_task

RNG = np.random.default_rng(0)
IMAGES = Dataset(
    "images",
    RNG.integers(0, 255, (20, 1, 8, 8)).astype(np.uint8),
    RNG.integers(0, 3, 20),
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


def add(**parts):
    def prepare(self):
        for name, make in parts.items():
            setattr(self, name, make())

    return prepare


def own(x):
    return x.flatten(1)


WRONG = {
    "not a module": (lambda shape, classes: 3, "made a int"),
    "no parameters": (lambda shape, classes: nn.Flatten(), "no parameter"),
    "all frozen": (module(prepare=lambda s: s.requires_grad_(False)), "not frozen"),
    "raises while built": (lambda shape, classes: 1 / 0, "ZeroDivisionError"),
    "takes one argument": (lambda shape: nn.Linear(1, 1), "TypeError"),
    "wrong width": (lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(9, 3)), "forward"),
    "too few outputs": (module(lambda s, x: s.fc(own(x))[:, :2]), r"\[4, 2\]"),
    "too many axes": (module(lambda s, x: s.fc(own(x))[:, None]), r"\[4, 1, 3\]"),
    "nothing comes out": (module(lambda s, x: None), "NoneType"),
    "text comes out": (module(lambda s, x: "logits"), "str"),
    "an ambiguous dict": (module(lambda s, x: {"a": s.fc(own(x)), "b": x}), "'logits'"),
    "two inputs": (module(lambda s, x, y: s.fc(own(x))), "TypeError"),
    "detached": (module(lambda s, x: s.fc(own(x)).detach()), "no gradient"),
    "an unused parameter": (module(prepare=add(other=lambda: nn.Linear(2, 2))), "'other.weight'"),
    "random numbers": (module(lambda s, x: s.fc(own(x) + torch.randn_like(own(x)))), "randn_like"),
    "rand": (module(lambda s, x: s.fc(own(x) * torch.rand(64))), "by rand,"),
    "bernoulli": (module(lambda s, x: s.fc(torch.bernoulli(own(x).sigmoid()))), "bernoulli"),
    "in-place chance": (module(lambda s, x: s.fc(own(x).clone().normal_())), "normal_"),
    "alpha dropout": (
        module(lambda s, x: s.fc(F.alpha_dropout(own(x), 0.5, s.training))),
        "alpha_dropout",
    ),
    "gumbel": (module(lambda s, x: F.gumbel_softmax(s.fc(own(x)))), "gumbel"),
    "rrelu": (module(lambda s, x: s.fc(F.rrelu(own(x), training=s.training))), "rrelu"),
    "attention with dropout": (
        module(
            lambda s, x: s.fc(
                F.scaled_dot_product_attention(x[:, 0], x[:, 0], x[:, 0], dropout_p=0.1).flatten(1)
            )
        ),
        "attention",
    ),
    "an LSTM with dropout": (
        module(prepare=add(lstm=lambda: nn.LSTM(8, 8, num_layers=2, dropout=0.5))),
        "dropout inside",
    ),
    "BatchNorm without momentum": (
        module(prepare=add(bn=lambda: nn.BatchNorm1d(3, momentum=None))),
        "momentum",
    ),
    "lazy layers": (module(prepare=add(lazy=lambda: nn.LazyLinear(3))), "lazy"),
    "half precision": (module(prepare=lambda s: s.half()), "float16"),
    "double precision": (module(prepare=lambda s: s.double()), "float64"),
    "complex parameters": (
        module(prepare=add(w=lambda: nn.Parameter(torch.zeros(2, dtype=torch.complex64)))),
        "complex64",
    ),
    "on no device": (module(prepare=lambda s: s.to("meta")), "meta"),
    "an assertion": (module(lambda s, x: [][1]), "IndexError"),
    "wants tokens": ("char-lstm", "tokens"),
    "unknown name": ("cn", "did you mean"),
    "unknown parameter": ("mlp:width=3", "width"),
    "no hidden unit": ("mlp:hidden=0", "at least 1"),
    "an unknown norm": ("resnet8:norm=layer", "group or batch"),
    "no such module": ("nowhere.at.all:model", "cannot be imported"),
    "no such file": ("nowhere.py:model", "no file"),
    "no such attribute": ("math:model", "defines no 'model'"),
    "not callable": ("math:pi", "not callable"),
    "images too small": ("cnn", "cannot be"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_model_that_cannot_be_trained_is_refused(case):
    model, words = WRONG[case]
    with pytest.raises(InvalidInputError, match=words) as refusal:
        build_model(model, IMAGES, make_task("classification", 3), 0)
    said = str(refusal.value)
    assert said.count("\n") == 0
    assert said.endswith((".", "?"))


def test_there_are_forty_of_them():
    assert len(WRONG) >= 40


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda outputs, targets: outputs.sum(), "one loss per sample"),
        (lambda outputs, targets: outputs.detach().sum(1), "no gradient"),
        (lambda outputs, targets: outputs[:, 99], "IndexError"),
    ],
)
def test_a_loss_that_cannot_be_descended_along_is_refused(loss, words):
    with pytest.raises(InvalidInputError, match=words):
        build_model("mlp", IMAGES, make_task("classification", 3, loss), 0)
