"""Clients in slots, many as one program or each on a stream: what the plain loop does."""

import dataclasses

import pytest
import torch
from local_problems import MUCH
from torch import nn
from torch.nn import functional as F

from fedcohort.training.accelerators.cuda_graphs import models
from fedcohort.training.accelerators.cuda_graphs.convolution import convolve
from fedcohort.training.accelerators.cuda_graphs.models import GraphedModels
from fedcohort.training.accelerators.cuda_graphs.side_by_side import side_by_side, whole_names
from fedcohort.training.architectures.resnet import ResNet
from fedcohort.training.modules import named_state, read_traits
from fedcohort.training.problem import Jobs, LocalProblem, LocalWork
from fedcohort.training.sequential import evaluate_sequential, train_sequential
from fedcohort.training.task import make_task

# Six clients of two runs, more than slots, and one of a third run, which trains on a stream.
SIZES = torch.tensor([9, 5, 3, 7, 6, 8, 5])
RUNS = torch.tensor([0, 1, 0, 1, 1, 0, 2])


@pytest.fixture(autouse=True)
def _few_slots(monkeypatch):
    # A GPU's kernels take long in an interpreter.
    monkeypatch.setattr(models, "_WIDE", 3)
    monkeypatch.setattr(models, "_FEW", 2)


class Looks(nn.Module):
    """Looks at its weights, which `vmap` does not allow."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(108, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.layer(x if self.layer.weight.sum() > 0 else -x)


def resnet():
    return ResNet((3, 6, 6), 10, blocks=(1, 1), width=4)


def small():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(4, 10),
    )


def convolutions():
    """With biases, and one whose taps are apart."""
    return nn.Sequential(
        nn.Conv2d(3, 5, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(5, 6, 3, padding=2, dilation=2),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(6, 10),
    )


def problem(make, work=MUCH):
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(1)
        model = make()
    state = {n: v.detach() for n, v in named_state(model)}
    total = int(SIZES.sum())
    jobs = Jobs(
        model=RUNS,
        start=SIZES.cumsum(0) - SIZES,
        size=SIZES,
        key=torch.arange(len(SIZES)) * 7919,
        passes=torch.ones(len(SIZES), dtype=torch.float64),
    )
    return LocalProblem(
        model,
        {n: torch.stack([v, 0.9 * v, 1.1 * v]) for n, v in state.items()},
        jobs,
        (
            torch.randn(total, 3, 6, 6, generator=generator),
            torch.randint(0, 10, (total,), generator=generator),
        ),
        torch.randperm(total, generator=generator),
        work,
        make_task("classification", 10),
    )


def trained(given):
    return GraphedModels(given.model, "float32").train(given)


@pytest.mark.parametrize("make", [resnet, convolutions, Looks])
def test_all_clients_are_trained_as_the_loop_trains_them(make):
    given = problem(make)
    oracle, found = train_sequential(given), trained(given)
    for name, values in oracle.parameters.items():
        assert (values - given.stacked[name][RUNS]).abs().max() > 1e-3
        assert torch.allclose(found.parameters[name], values, rtol=0, atol=1e-5), name
    assert torch.allclose(found.losses, oracle.losses, rtol=0, atol=1e-5)


class Viewed(nn.Module):
    """Flattens in a way that channels-last images do not allow."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 4, 3), nn.Linear(64, 10)

    def forward(self, x):
        return self.last(torch.tanh(self.conv(x)).view(-1, 64))


def test_a_model_that_takes_no_channels_last_images_is_given_others():
    given = problem(Viewed)
    given = dataclasses.replace(given, traits=read_traits(given.model, given.data[0]))
    graphed = GraphedModels(given.model, "float32", given.traits.channels_last)
    oracle, found = train_sequential(given), graphed.train(given)
    for name, values in oracle.parameters.items():
        assert torch.allclose(found.parameters[name], values, rtol=0, atol=1e-5), name
    ways = (graphed.evaluate, evaluate_sequential)
    judged = [way(given.model, given.stacked, given.data, given.task) for way in ways]
    assert all(map(torch.allclose, *judged))


def normalised():
    """With a normalisation first, whose parameters are float32 where others are bfloat16."""
    return nn.Sequential(nn.GroupNorm(3, 3), small())


@pytest.mark.parametrize("make", [resnet, normalised])
def test_in_bfloat16_clients_go_nearly_where_the_loop_takes_them(make, monkeypatch):
    # On streams: the interpreter of GPU kernels does not know bfloat16.
    monkeypatch.setattr(models, "_FEW", 10)
    given = problem(make, LocalWork(4, 0.05))
    oracle, found = train_sequential(given), GraphedModels(given.model, "bfloat16").train(given)
    for name, values in oracle.parameters.items():
        start = given.stacked[name][RUNS]
        there, here = ((end - start).flatten() for end in (values, found.parameters[name]))
        assert torch.cosine_similarity(there, here, dim=0) > 0.95, name
        assert 0.9 < here.norm() / there.norm() < 1.1, name
    assert torch.allclose(found.losses, oracle.losses, rtol=0, atol=5e-3)


def test_the_parameters_of_normalisations_alone_are_not_rounded():
    names = {n for n, _ in resnet().named_parameters()}
    assert whole_names(side_by_side(resnet())) == {n for n in names if "norm" in n or "cut.1" in n}
    assert whole_names(side_by_side(nn.GroupNorm(1, 3))) == {"weight", "bias"}


def test_a_run_is_trained_the_same_alone_and_among_others():
    given = problem(small)
    together = trained(given)
    for run in range(3):
        own = (run == RUNS).nonzero()[:, 0]
        alone = trained(given.only(own))
        for name, values in alone.parameters.items():
            assert torch.equal(values, together.parameters[name][own]), (run, name)
        assert torch.equal(alone.losses, together.losses[own])


def test_whether_clients_train_as_one_program_is_up_to_the_model_and_their_run():
    widths = {}
    for make in (small, Looks):
        given = problem(make)
        graphed = GraphedModels(given.model, "float32")
        seen = widths[make] = []
        train = graphed._train
        graphed._train = lambda part, width, train=train, seen=seen: (
            seen.append((width, sorted(set(part.jobs.model.tolist())))) or train(part, width)
        )
        graphed.train(given)
    assert widths[small] == [(models._WIDE, [0, 1]), (1, [2])]
    assert widths[Looks] == [(1, [0, 1, 2])]


class Modes(nn.Sequential):
    """Notes whether it is being trained: recurrent layers on a GPU have no gradient otherwise."""

    def __init__(self, seen):
        super().__init__(nn.Flatten(), nn.Linear(108, 10))
        self.note = seen.add

    def forward(self, x):
        self.note(self.training)
        return super().forward(x)


def test_a_model_that_was_evaluated_is_in_training_mode_again():
    seen = set()
    given = problem(lambda: Modes(seen)).only(torch.tensor([6]))
    graphed = GraphedModels(given.model, "float32")
    graphed.evaluate(given.model, given.stacked, given.data, given.task)
    assert seen == {False}
    seen.clear()
    graphed.train(given)
    assert seen == {True}


def test_a_later_round_with_more_to_do_is_trained_whole():
    given = problem(small, dataclasses.replace(MUCH, augmentation=None))
    graphed = GraphedModels(given.model, "float32")
    graphed.train(given.only(torch.arange(4)))
    more = dataclasses.replace(given.jobs, passes=given.jobs.passes * 3)
    longer = dataclasses.replace(given, jobs=more)
    found, oracle = graphed.train(longer), train_sequential(longer)
    for name, values in oracle.parameters.items():
        assert torch.allclose(found.parameters[name], values, rtol=0, atol=2e-5), name


SHAPES = {
    "three channels": ((2, 3, 8, 8, 3), (2, 16, 3, 3, 3), 1, 1),
    "every second pixel": ((2, 3, 8, 8, 16), (2, 32, 3, 3, 16), 2, 1),
    "one by one, every second": ((2, 2, 8, 8, 16), (2, 32, 1, 1, 16), 2, 0),
    "nothing is even": ((1, 2, 7, 9, 20), (1, 24, 3, 5, 20), 2, 1),
    "many channels, several parts": ((1, 9, 16, 16, 34), (1, 130, 3, 3, 34), 1, 1),
}


@pytest.mark.parametrize("case", SHAPES)
def test_convolutions_and_their_gradients_are_pytorchs(case):
    inputs, weights, stride, padding = SHAPES[case]
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(shape, generator=generator) for shape in (inputs, weights))
    # A model's weights are a part of a longer row.
    w = torch.nn.functional.pad(w.flatten(1), (0, 7))[:, : w[0].numel()].view(weights)
    x.requires_grad_()
    w.requires_grad_()
    y = convolve(x, w, stride, padding)
    expected = torch.stack(
        [
            F.conv2d(a.permute(0, 3, 1, 2), b.permute(0, 3, 1, 2), stride=stride, padding=padding)
            for a, b in zip(x, w, strict=True)
        ]
    ).permute(0, 1, 3, 4, 2)
    dy = torch.randn(y.shape, generator=generator)
    pairs = zip(
        (y, *torch.autograd.grad(y, (x, w), dy)),
        (expected, *torch.autograd.grad(expected, (x, w), dy)),
        strict=True,
    )
    for found, wanted in pairs:
        assert found.shape == wanted.shape
        assert (found - wanted).abs().max() <= 2e-6 * wanted.abs().max()


def test_the_model_that_came_is_left_as_it_is():
    model = resnet()
    own = side_by_side(model)
    assert type(model.stem) is nn.Conv2d
    assert type(own.stem) is not nn.Conv2d
    assert own.stem.weight is not model.stem.weight
