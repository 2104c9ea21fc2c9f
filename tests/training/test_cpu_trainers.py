"""Every way of local training on a CPU against the text-book loop."""

import copy

import pytest
import torch
import torch.nn.functional as F
from four_jobs import four_jobs
from torch import nn

from fedcohort.profiles import fc1_profiles
from fedcohort.training.chain import forward, read_chain, until_first_linear
from fedcohort.training.clients import PerClient
from fedcohort.training.local import train_sequential
from fedcohort.training.models import build_model
from fedcohort.training.plan import LocalWork
from fedcohort.training.stacked import Stacked, gradients_of
from fedcohort.training.workers import Workers


class Padded(nn.Module):
    """A chain with all that a chain may have: padding, no bias, pools before and after ReLUs."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1, bias=False),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(4, 6, (1, 3)),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(6 * 4 * 2, 10, bias=False),
        )

    def forward(self, x):
        return self.layers(x)


class Residual(nn.Module):
    """Not a chain."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.second(x + torch.tanh(self.first(x)))


def make(kind):
    if kind in (Padded, Residual):
        with torch.random.fork_rng(devices=[]):
            torch.random.manual_seed(0)
            return kind()
    return build_model(kind, (1, 8, 8), 10, 0)


def setting(kind, sizes=(13, 27, 20, 30)):
    """Four clients of two runs, of different sizes and with different work, in float64."""
    generator = torch.Generator().manual_seed(0)
    total = sum(sizes)
    x = torch.randn(total, 1, 8, 8, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 10, (total,), generator=generator)
    model = make(kind).double()
    stacked = {n: torch.stack([p.detach(), 0.9 * p.detach()]) for n, p in model.named_parameters()}
    return model, stacked, four_jobs(sizes), (x, y), torch.randperm(total, generator=generator)


def trainers(model):
    found = {f"per client, {way}": PerClient(way) for way in (Workers(1, 1), Workers(3, 1))}
    layers = read_chain(model, (1, 8, 8))
    if layers is not None:
        found |= {f"stacked, {way}": Stacked(layers, way) for way in (Workers(1, 2), Workers(2, 1))}
    return found


def assert_same(one, other, tolerance=1e-7):
    # The plan's weights are float32, so that much is lost even in float64.
    for name, values in one.parameters.items():
        assert torch.allclose(values, other.parameters[name], rtol=0, atol=tolerance), name
    assert torch.allclose(one.losses, other.losses, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["cnn-small", "mlp", Padded, Residual])
@pytest.mark.parametrize(
    "work",
    [
        LocalWork(None, 0.1),
        LocalWork(1, 0.01),
        LocalWork(8, 0.1, momentum=0.9),
        LocalWork(64, 0.1, momentum=0.5, proximal=0.3),
    ],
    ids=["full", "single", "momentum", "proximal"],
)
def test_all_trainers_do_what_the_loop_does(kind, work):
    problem = setting(kind)
    oracle = train_sequential(*problem, work)
    before = copy.deepcopy(problem[1])
    for name, trainer in trainers(problem[0]).items():
        trained = trainer(*problem, work)
        assert_same(oracle, trained)
        assert all(torch.equal(problem[1][n], before[n]) for n in before), name


def test_a_batch_computed_in_pieces_is_one_step():
    problem = setting("cnn-small", sizes=(500, 193, 192, 30))
    work = LocalWork(None, 0.1, momentum=0.5)
    assert_same(train_sequential(*problem, work), PerClient(Workers(2, 1))(*problem, work))


def test_a_clients_result_does_not_depend_on_how_many_work():
    model, stacked, jobs, (x, y), pool = setting("cnn-small")
    narrow = {name: values.float() for name, values in stacked.items()}
    problem = model.float(), narrow, jobs, (x.float(), y), pool, LocalWork(8, 0.1, 0.9)
    one, three = (PerClient(Workers(count, 1))(*problem) for count in (1, 3))
    for name, values in one.parameters.items():
        assert torch.equal(values, three.parameters[name])
    assert torch.equal(one.losses, three.losses)


def test_shares_that_fit_the_cache_are_trained_one_after_the_other(monkeypatch):
    problem = setting("cnn-small")
    work = LocalWork(8, 0.1)
    trainer = Stacked(read_chain(problem[0], (1, 8, 8)), Workers(1, 1))
    whole = trainer(*problem, work)
    monkeypatch.setattr("fedcohort.training.stacked._VALUES_AT_ONCE", 1)
    assert_same(whole, trainer(*problem, work), tolerance=1e-12)


def test_written_out_gradients_are_those_of_autograd():
    model = make(Padded).double()
    layers = read_chain(model, (1, 8, 8))
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 5, 1, 8, 8, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 10, (2, 5), generator=generator)
    weight = torch.rand(2, 5, generator=generator, dtype=torch.float64)
    stacked = {n: torch.stack([p.detach(), 1.1 * p.detach()]) for n, p in model.named_parameters()}
    gradients, losses = gradients_of(layers, stacked, x, y, weight)
    for m in range(2):
        own = {n: v[m].clone().requires_grad_() for n, v in stacked.items()}
        logits = torch.func.functional_call(model, own, (x[m],))
        loss = (F.cross_entropy(logits, y[m], reduction="none") * weight[m]).sum()
        expected = torch.autograd.grad(loss, list(own.values()))
        assert torch.allclose(losses[m], loss)
        for name, gradient in zip(own, expected, strict=True):
            assert torch.allclose(gradients[name][m], gradient, atol=1e-12), name


def test_a_chain_gives_the_models_outputs_with_pools_moved_before_relus():
    for kind in ("cnn-small", "mlp", Padded):
        model = make(kind)
        x = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(2))
        layers = read_chain(model, (1, 8, 8))
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        expected = model(x)
        assert torch.allclose(forward(layers, parameters, x), expected, atol=1e-6)
        with torch.no_grad():
            assert torch.allclose(forward(layers, parameters, x), expected, atol=1e-6)
    assert read_chain(make(Residual), (1, 8, 8)) is None


def test_the_first_layer_in_pieces_has_the_same_outputs_and_gradients(monkeypatch):
    model = make("cnn-small")
    layers = read_chain(model, (1, 8, 8))
    parameters = dict(model.named_parameters())
    x = torch.randn(7, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    found = []
    for values in (2**20, 3 * layers[0].outputs * layers[0].pool ** 2):
        monkeypatch.setattr("fedcohort.training.chain._VALUES_AT_ONCE", values)
        logits = forward(layers, parameters, x)
        found.append([logits, *torch.autograd.grad(logits.square().sum(), parameters.values())])
    for whole, pieces in zip(*found, strict=True):
        assert torch.allclose(whole, pieces, rtol=1e-4, atol=1e-5)


def test_profiles_are_the_same_on_the_short_way():
    x = torch.randn(9, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    everyone = torch.arange(9), torch.tensor([4, 5])
    for kind in ("cnn-small", "mlp", Padded, Residual):
        model = make(kind)
        short = until_first_linear(model, (1, 8, 8))
        assert (short is model) == (kind is Residual)
        assert torch.allclose(
            fc1_profiles(short, x, *everyone), fc1_profiles(model, x, *everyone), atol=1e-6
        )


def test_what_goes_wrong_in_a_worker_is_raised():
    model, stacked, jobs, (x, y), pool = setting("cnn-small")
    with pytest.raises(IndexError):
        PerClient(Workers(2, 1))(model, stacked, jobs, (x, y + 10), pool, LocalWork(8, 0.1))
