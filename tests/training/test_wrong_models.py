# ruff: noqa: ARG005
"""Models that cannot be trained right are refused in one sentence, before anything is made."""

import random
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from made_models import WrittenByHand, checked, module, own
from torch import nn

from fedcohort.errors import InvalidInputError
from fedcohort.federation import Dataset
from fedcohort.training.task import make_task


def add(**parts):
    def prepare(self):
        for name, make in parts.items():
            setattr(self, name, make())

    return prepare


def _count(model):
    model.calls += 1
    return model.calls


def changing(self, x):
    x /= 2
    return self.fc(own(x))


def counting(self, x):
    self.batches = getattr(self, "batches", 0) + self.training
    return self.fc(own(x)) / (1 + self.batches)


def keeping(self, x):
    outputs = self.fc(own(x)) + getattr(self, "kept", 0)
    self.kept = outputs.detach().mean(0)
    return outputs


def centring(self, x):
    if not hasattr(self, "middle"):
        self.middle = own(x).mean(0)
    return self.fc(own(x) - self.middle)


def buffer():
    return nn.Buffer(torch.zeros(64))


def remembering(self, x):
    if not self.seen:
        self.mean.copy_(own(x).mean(0))
        self.seen.fill_(True)
    return self.fc(own(x) - self.mean)


def late(self, x):
    self.b = torch.ones(64)
    return self.fc(own(x) * self.b)


def in_common(self, x):
    means = type(self).__dict__["means"]
    if self.training:
        means.copy_(own(x).mean(0))
    return self.fc(own(x) - (0 if self.training else means))


def merging(self, x):
    if self.training:
        return self.fc(own(x))
    if self.merged is None:
        self.merged = 2 * self.fc.weight.detach()
    return own(x) @ self.merged.T


def masking(self, x):
    if self.mask is None:
        self.mask = F.dropout(torch.ones(64), 0.5)
    return self.fc(own(x) * self.mask if self.training else own(x))


def squeezed(self, x):
    return self.fc(x[..., None].squeeze().flatten(1))


def steep(self, x):
    x = own(x).requires_grad_()
    outputs = self.fc(x)
    (slope,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
    return outputs + slope.sum()


def changed(outputs, targets):
    losses = F.cross_entropy(outputs, targets, reduction="none")
    targets += 1
    return losses


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
    "dropout in evaluation": (module(lambda s, x: s.fc(F.dropout(own(x)))), "self.training"),
    "bernoulli, as a method": (
        module(lambda s, x: s.fc(own(x).sigmoid().bernoulli())),
        "by bernoulli,",
    ),
    "exponential": (module(lambda s, x: s.fc(own(x).clone().exponential_())), "exponential_"),
    "poisson": (module(lambda s, x: s.fc(torch.poisson(own(x).abs()))), "poisson"),
    "chance inside a pool": (
        module(lambda s, x: s.fc(F.fractional_max_pool2d(F.pad(x, (4, 4, 4, 4)), 2, 8).flatten(1))),
        "PyTorch's global generator",
    ),
    "geometric": (
        module(lambda s, x: s.fc(own(x).clone().geometric_(0.5))),
        "PyTorch's global generator",
    ),
    "NumPy's chance": (
        module(lambda s, x: s.fc(own(x) * float(np.random.rand()))),  # noqa: NPY002
        "NumPy's global generator",
    ),
    "Python's chance": (module(lambda s, x: s.fc(own(x) * random.random())), "Python's random"),
    "a generator of its own": (
        module(
            lambda s, x: s.fc(own(x) * float(s.own.random())),
            add(own=lambda: np.random.default_rng(0)),
        ),
        "the same numbers come again",
    ),
    "a count of steps": (
        module(
            lambda s, x: s.fc(own(x)) * s.steps.add_(1),
            lambda s: s.register_buffer("steps", torch.zeros((), dtype=torch.long)),
        ),
        "the same numbers come again",
    ),
    "a state in an attribute": (
        module(lambda s, x: _count(s) * s.fc(own(x)), add(calls=lambda: 0)),
        "the same numbers come again",
    ),
    "a lock": (module(prepare=add(lock=threading.Lock)), "cannot be copied"),
    "a computed tensor": (
        module(prepare=lambda s: setattr(s, "scale", s.fc.weight.abs().mean())),
        "cannot be copied",
    ),
    "a buffer in bfloat16": (
        module(prepare=lambda s: s.register_buffer("b", torch.zeros(2, dtype=torch.bfloat16))),
        "'b' is bfloat16",
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
    "a hook of a parameter": (
        module(prepare=lambda s: s.fc.weight.register_hook(lambda gradient: 2 * gradient)),
        "'fc.weight' has a hook",
    ),
    "a hook after a gradient": (
        module(prepare=lambda s: s.fc.bias.register_post_accumulate_grad_hook(lambda p: None)),
        "'fc.bias' has a hook",
    ),
    "inputs changed in place": (module(changing), "write x = x / 2 for x /= 2"),
    "inputs changed in training": (
        module(lambda s, x: s.fc(F.relu(x, inplace=s.training).flatten(1))),
        "changes its inputs in place",
    ),
    "inputs changed behind PyTorch's back": (
        module(lambda s, x: s.fc(own(x.data.mul_(2)))),
        "changes its inputs in place",
    ),
    "a count of batches": (module(counting), "in float buffers"),
    "outputs kept": (module(keeping), "in float buffers"),
    "an attribute of the first batch": (module(centring), "register it as a float buffer"),
    "a first batch that is kept": (
        module(remembering, add(seen=lambda: nn.Buffer(torch.tensor(False)), mean=buffer)),
        "in float buffers",
    ),
    "statistics in attributes": (
        module(
            lambda s, x: s.fc(s.norm(own(x))),
            add(norm=lambda: WrittenByHand(64, registered=False)),
        ),
        r"'norm\.moving_mean', .*register_buffer",
    ),
    "statistics that copies have in common": (
        module(in_common, lambda s: setattr(type(s), "means", torch.zeros(64))),
        "depends on earlier batches",
    ),
    "weights that are kept": (module(merging, add(merged=lambda: None)), "on earlier batches"),
    "a mask that is kept": (module(masking, add(mask=lambda: None)), "on earlier batches"),
    "a buffer that comes later": (
        module(late, lambda s: s.register_buffer("b", None)),
        r"'b' has another shape when it has run \(none and \[64\]\)",
    ),
    "a sparse buffer that is saved": (
        module(prepare=lambda s: s.register_buffer("b", torch.eye(64).to_sparse())),
        "'b' is sparse, .*persistent=False",
    ),
    "a single sample is squeezed": (module(squeezed), r"single sample .*squeeze\(-1\)"),
    "inputs dropped in place": (
        module(lambda s, x: s.fc(F.dropout(own(x), 0.5, s.training, inplace=True))),
        "changes its inputs in place",
    ),
    "gradients of its own": (module(steep), "forward pass fails"),
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
        checked(model)
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
        (lambda outputs, targets: F.dropout(outputs).sum(1), "its loss draws dropout"),
        (lambda outputs, targets: outputs.sum(1) + torch.rand(4), "by rand,"),
        (lambda outputs, targets: outputs.sum(1) * random.random(), "Python's random"),
        (
            lambda outputs, targets: (outputs * torch.autograd.grad(outputs.sum(), outputs)[0]).sum(
                1
            ),
            "fails in evaluation",
        ),
        (changed, "changes the targets in place"),
    ],
)
def test_a_loss_that_cannot_be_descended_along_is_refused(loss, words):
    with pytest.raises(InvalidInputError, match=words):
        checked("mlp", task=make_task("classification", 3, loss))


def test_targets_at_every_place_need_a_model_that_answers_there():
    tokens = np.random.default_rng(0).integers(0, 6, (20, 8))
    x, y, task = tokens[:, :-1], tokens[:, 1:], make_task("next-token", 6)

    def build(model, y):
        data = Dataset("text", x, y, x[:0], y[:0], classes=6, task="next-token", inputs="tokens")
        return checked(model, data, task)

    with pytest.raises(InvalidInputError, match=r"\[4, 7, 6\]: .* at every place, or, as"):
        build("auto", y)
    build(
        lambda shape, classes, vocabulary: nn.Sequential(
            nn.Embedding(vocabulary, 8), nn.Linear(8, classes)
        ),
        y,
    )
    build("auto", y[:, -1])
