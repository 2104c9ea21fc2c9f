# ruff: noqa: ARG004, ARG005
"""Models that do more than their layers: what is chosen for them does what plain PyTorch does."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from made_models import WrittenByHand
from torch import nn

from fedcohort.training.accelerators.choice import choose_trainer
from fedcohort.training.layers import find_chain
from fedcohort.training.modules import named_state, read_traits
from fedcohort.training.problem import Jobs, LocalProblem, LocalWork
from fedcohort.training.task import classification


class Two(nn.Module):
    """Two layers, and whatever a test does to them."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x):
        return self.last(torch.relu(self.first(x.flatten(1))))


class CalledInItsOwnWay(Two):
    def __call__(self, x):
        return super().__call__(x) * 3


class ReluInTrainingAlone(Two):
    def forward(self, x):
        x = self.first(x.flatten(1))
        return self.last(torch.relu(x) if self.training else x)


class SoftmaxInEvaluation(Two):
    def forward(self, x):
        x = super().forward(x)
        return x if self.training else torch.log_softmax(3 * x, 1)


class Scaled(torch.autograd.Function):
    """Gradients three times as large, which no trace shows."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return 3 * gradient


class ScaledGradient(Two):
    def forward(self, x):
        return self.last(Scaled.apply(torch.relu(self.first(x.flatten(1)))))


class MovingMean(Two):
    """A buffer that is not changed, but put anew."""

    mean: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x):
        x = x.flatten(1)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return super().forward(x - self.mean)


class PaddedByReflection(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect")
        self.last = nn.Linear(256, 10)

    def forward(self, x):
        return self.last(torch.relu(self.conv(x)).flatten(1))


def hooked(register, hook, *, whole=False):
    def make():
        model = Two()
        getattr(model if whole else model.last, register)(hook)
        return model

    return make


class Viewed(nn.Module):
    """PyTorch's classic way to flatten, which channels-last tensors do not have."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(1, 4, 3), nn.Linear(4 * 36, 10)

    def forward(self, x):
        return self.last(torch.tanh(self.conv(x)).view(-1, 4 * 36))


class Centred(Two):
    """Samples of a batch that depend on each other."""

    def forward(self, x):
        if self.training:
            x = x - x.mean(0)
        return super().forward(x)


class Following(Two):
    """A buffer that follows the batches, and that training does not look at."""

    def __init__(self):
        super().__init__()
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.batches += 1
        return super().forward(x) * (1 if self.training else 1 / (1 + self.batches))


class ByGradients(Two):
    def __init__(self):
        super().__init__()
        self.norm = WrittenByHand(64, registered=True)

    def forward(self, x):
        return super().forward(self.norm(x.flatten(1)))


class Sparse(Two):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.eye(64).to_sparse(), persistent=False)

    def forward(self, x):
        return super().forward((self.table @ x.flatten(1).T).T)


def deep():
    layers = (layer for _ in range(64) for layer in (nn.Linear(64, 64), nn.ReLU()))
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 10))


MODELS = {
    "padding by reflection": PaddedByReflection,
    "a hook": hooked("register_forward_hook", lambda m, i, o: 3 * o),
    "a hook of the whole": hooked("register_forward_hook", lambda m, i, o: 3 * o, whole=True),
    "a pre-hook": hooked("register_forward_pre_hook", lambda m, i: (3 * i[0],)),
    "a backward hook": hooked("register_full_backward_pre_hook", lambda m, o: (3 * o[0],)),
    "a call of its own": CalledInItsOwnWay,
    "a layer in training alone": ReluInTrainingAlone,
    "a layer in evaluation alone": SoftmaxInEvaluation,
    "a gradient of its own": ScaledGradient,
    "a buffer put anew": MovingMean,
    "a view": Viewed,
    "a batch that is centred": Centred,
    "a batch that is centred, by gradients": ByGradients,
    "a buffer that follows": Following,
    "a sparse buffer": Sparse,
}


def problem(model, samples=300):
    """Return one full-batch step of one client."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 1, 8, 8, generator=generator)
    y = torch.randint(0, 10, (samples,), generator=generator)
    one, zero = torch.ones(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    jobs = Jobs(model=zero, start=zero, size=samples * one, key=one, passes=one.double())
    stacked = {name: values.detach()[None].clone() for name, values in named_state(model)}
    return LocalProblem(
        *(model, stacked, jobs, (x, y), torch.arange(samples), LocalWork(None, 0.1)),
        *(classification(10), read_traits(model, x[:4])),
    )


def loss_of(model, data):
    return F.cross_entropy(model(data[0].clone()), data[1])


@pytest.mark.parametrize("case", MODELS)
def test_a_step_is_that_of_plain_pytorch(case):
    model = MODELS[case]()
    given, own = problem(model), copy.deepcopy(model).train()
    trainer = choose_trainer(given, "float32")
    # Twice, since nothing of the first client may be left when the second begins.
    for _ in range(2):
        trained = trainer.train(given)
    loss = loss_of(own, given.data)
    loss.backward()
    torch.optim.SGD(own.parameters(), 0.1).step()
    assert float(trained.losses[0]) == pytest.approx(float(loss.detach()), abs=1e-5)
    for name, values in named_state(own):
        found = trained.parameters[name][0]
        assert torch.allclose(found, values, rtol=0, atol=1e-5), name
    with torch.no_grad():
        own_loss = float(loss_of(own.eval(), given.data))
    _, judged = trainer.evaluate(model, trained.parameters, given.data, given.task)
    assert float(judged[0]) == pytest.approx(own_loss, abs=1e-5)


@pytest.mark.parametrize("case", MODELS)
def test_none_of_them_is_a_chain_and_none_is_changed_by_looking(case):
    model = MODELS[case]()
    before = copy.deepcopy(dict(vars(model)))
    assert find_chain(model, (1, 8, 8)) is None
    assert vars(model).keys() == before.keys()
    assert all(not isinstance(own, torch.fx.Proxy) for own in model.buffers())


def test_what_is_found_out_about_a_model_is_found_out_once():
    ways = iter([True] + [False] * 20)

    class ByChance(Two):
        def forward(self, x):
            x = self.first(x.flatten(1))
            return self.last(torch.relu(x) if next(ways) else torch.tanh(x))

    given = dataclasses.replace(problem(Two()), model=ByChance())
    assert choose_trainer(given, "float32").name == "per client"


@pytest.mark.parametrize(
    ("model", "mixes"),
    [
        (Centred, True),
        (ByGradients, True),
        (Following, True),
        (Sparse, True),
        (deep, False),
        (Two, False),
        (lambda: nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 10)), False),
    ],
)
def test_it_is_known_whether_samples_depend_on_each_other(model, mixes):
    model = model()
    for p in model.parameters():
        nn.init.zeros_(p)  # Which hides it until the first step.
    for samples in (2, 4, 30):
        assert read_traits(model, torch.randn(samples, 1, 8, 8)).mixes == mixes
