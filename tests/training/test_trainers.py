"""Every trainer that takes any model against the sequential one, the oracle."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from local_problems import four_clients, stacked_parameters
from made_models import made
from torch import nn

from fedcohort.training import batched, per_client, sequential
from fedcohort.training.batched import BATCHED
from fedcohort.training.per_client import PER_CLIENT
from fedcohort.training.problem import Groups, LocalWork
from fedcohort.training.sequential import SEQUENTIAL, train_sequential
from fedcohort.training.task import classification

TASK = classification(10)
SHAPE = (1, 8, 8)
TRAINERS = {trainer.name: trainer for trainer in (PER_CLIENT, BATCHED)}
EVALUATORS = {trainer.name: trainer for trainer in (SEQUENTIAL, PER_CLIENT, BATCHED)}


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
    return made(kind, SHAPE, 10, 0)


def assert_same(one, other, tolerance=1e-7):
    # The plan's weights are float32, so that much is lost even in float64.
    for name, values in one.parameters.items():
        assert torch.allclose(values, other.parameters[name], rtol=0, atol=tolerance), name
    assert torch.allclose(one.losses, other.losses, rtol=0, atol=1e-6)


@pytest.mark.parametrize("trainer", TRAINERS)
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
def test_training_does_what_the_loop_does(trainer, kind, work, workers):
    problem = four_clients(make(kind), SHAPE, work, dtype=torch.float64)
    oracle = train_sequential(problem)
    before = copy.deepcopy(problem.stacked)
    workers(3)
    assert_same(oracle, TRAINERS[trainer].train(problem))
    for name, values in before.items():
        assert torch.equal(problem.stacked[name], values), "the global models are left alone"


def test_a_batch_computed_in_pieces_is_one_step():
    sizes = (2 * per_client._SAMPLES_AT_ONCE + 116, 193, per_client._SAMPLES_AT_ONCE, 30)
    work = LocalWork(None, 0.1, momentum=0.5)
    problem = four_clients(make("cnn-small"), SHAPE, work, sizes=sizes, dtype=torch.float64)
    assert_same(train_sequential(problem), PER_CLIENT.train(problem))


def test_more_jobs_than_fit_into_memory_are_trained_in_turn(monkeypatch):
    problem = four_clients(make("cnn-small"), SHAPE, LocalWork(8, 0.05, 0.5), dtype=torch.float64)
    whole = BATCHED.train(problem)
    monkeypatch.setattr(batched, "_JOBS_AT_ONCE", 3)
    assert_same(whole, BATCHED.train(problem), tolerance=1e-12)


@pytest.mark.parametrize("kind", ["cnn-small", "mlp", Residual])
def test_a_clients_result_depends_neither_on_the_workers_nor_on_the_other_clients(kind, workers):
    problem = four_clients(make(kind), SHAPE, LocalWork(8, 0.1, 0.9))
    together = PER_CLIENT.train(problem)
    for count in (1, 2, 3):
        workers(count)
        for part in (slice(None), slice(1, 2), torch.tensor([3, 1])):
            found = PER_CLIENT.train(problem.only(part))
            assert torch.equal(found.losses, together.losses[part])
            for name, values in found.parameters.items():
                assert torch.equal(values, together.parameters[name][part])


def test_what_goes_wrong_in_a_worker_is_raised():
    problem = four_clients(make("cnn-small"), SHAPE, LocalWork(8, 0.1))
    x, y = problem.data
    with pytest.raises(IndexError):
        PER_CLIENT.train(dataclasses.replace(problem, data=(x, y + 10)))


@pytest.fixture
def few_at_once(monkeypatch):
    """Have evaluations come in pieces."""
    for module in (sequential, batched):
        monkeypatch.setattr(module, "_SAMPLES_AT_ONCE", 7)
    monkeypatch.setattr(per_client, "_EVALUATED_AT_ONCE", 7)
    monkeypatch.setattr(per_client, "_EVALUATED_PER_PART", 21)


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("trainer", EVALUATORS)
def test_accuracy_and_loss_are_those_of_each_model_alone(trainer):
    models = [made("cnn-small", SHAPE, 10, seed) for seed in range(3)]
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(50, *SHAPE, generator=generator), torch.arange(50) % 10
    expected = [(m(x).argmax(1) == y).double().mean().item() for m in models]
    losses = [F.cross_entropy(m(x), y).item() for m in models]
    template = made("cnn-small", SHAPE, 10, 9)
    stacked = stacked_parameters(models)
    accuracy, loss = EVALUATORS[trainer].evaluate(template, stacked, (x, y), TASK)
    assert accuracy.tolist() == pytest.approx(expected, abs=1e-12)
    assert loss.tolist() == pytest.approx(losses, rel=1e-5)
    assert accuracy.dtype == loss.dtype == torch.float64


@pytest.mark.parametrize("samples", [1, 300, 4500])
def test_scores_are_those_of_the_loop_however_many_samples_there_are(samples):
    models = [made("cnn-small", SHAPE, 10, seed) for seed in range(3)]
    x = torch.randn(samples, *SHAPE, generator=torch.Generator().manual_seed(0))
    y = torch.arange(samples) % 10
    stacked = stacked_parameters(models)
    expected, losses = SEQUENTIAL.evaluate(models[0], stacked, (x, y), TASK)
    for trainer in TRAINERS.values():
        accuracy, loss = trainer.evaluate(models[0], stacked, (x, y), TASK)
        # Of two outputs that are equal up to rounding, either may be the larger.
        assert accuracy.tolist() == pytest.approx(expected.tolist(), abs=1.5 / samples)
        assert loss.tolist() == pytest.approx(losses.tolist(), rel=1e-5)


def test_scores_depend_neither_on_the_workers_nor_on_the_other_models(workers):
    models = [made("cnn-small", SHAPE, 10, seed) for seed in range(3)]
    stacked = stacked_parameters(models)
    x = torch.randn(5000, *SHAPE, generator=torch.Generator().manual_seed(0))
    y = torch.arange(5000) % 10
    alone = {name: values[1:2] for name, values in stacked.items()}
    found = set()
    for count in (1, 2, 3):
        workers(count)
        for given, place in ((stacked, 1), (alone, 0)):
            scores = PER_CLIENT.evaluate(models[0], given, (x, y), TASK)
            found.add(tuple(values[place].item() for values in scores))
    assert len(found) == 1


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("trainer", EVALUATORS)
@pytest.mark.parametrize("which", [None, [1, 0, 1]])
def test_groups_are_measured_with_their_model_on_their_own_samples(trainer, which):
    model = made("cnn-small", SHAPE, 10, 0)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, *SHAPE, generator=generator), torch.arange(30) % 10
    samples, sizes = torch.randperm(30, generator=generator), torch.tensor([4, 25, 1])
    stacked = stacked_parameters([made("cnn-small", SHAPE, 10, seed) for seed in (1, 2)])
    groups = Groups(samples, sizes, None if which is None else torch.tensor(which))
    scores, losses = EVALUATORS[trainer].measure(model, stacked, (x, y), groups, TASK)
    owned = zip(which or [0, 0, 0], torch.split(samples, sizes.tolist()), strict=True)
    for g, (place, own) in enumerate(owned):
        parameters = {name: values[place] for name, values in stacked.items()}
        outputs = torch.func.functional_call(model, parameters, (x[own],))
        assert losses[g].item() == pytest.approx(F.cross_entropy(outputs, y[own]).item(), rel=1e-5)
        assert scores[g].item() == pytest.approx((outputs.argmax(1) == y[own]).double().mean())


def test_groups_are_measured_in_the_type_that_is_asked_for():
    model = made("cnn-small", SHAPE, 10, 0)
    x = torch.randn(30, *SHAPE, generator=torch.Generator().manual_seed(0))
    data = x, torch.arange(30) % 10
    groups = Groups(torch.arange(30), torch.tensor([10, 20]), None)
    arguments = (model, stacked_parameters([model]), data, groups, TASK)
    exact, rough = (
        batched.measure_batched(*arguments, dtype=dtype)[1]
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert exact.dtype == rough.dtype == torch.float64
    torch.testing.assert_close(rough, exact, rtol=1e-2, atol=0.0)
    assert (rough != exact).all()
