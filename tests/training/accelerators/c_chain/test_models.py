"""The compiled kernels against the sequential trainer: training and evaluation."""

import copy
import dataclasses

import pytest
import torch
from local_problems import four_clients, in_double
from torch import nn

from fedcohort.training.accelerators.c_chain.compiler import kernels
from fedcohort.training.accelerators.c_chain.models import CompiledModels
from fedcohort.training.layers import read_chain
from fedcohort.training.problem import Groups, LocalWork
from fedcohort.training.sequential import SEQUENTIAL, train_sequential

pytestmark = pytest.mark.skipif(kernels() is None, reason="needs a C compiler (cc)")

CHAINS = {
    # Widths of less than a vector, of one, and of more than a tile of vectors holds.
    "plain": (
        (1, 8, 8),
        lambda: [
            nn.Conv2d(1, 8, 3),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 32),
            nn.ReLU(),
            nn.Linear(32, 10),
        ],
    ),
    "colours, padding, no bias, odd sides": (
        (3, 9, 11),
        lambda: [
            nn.Conv2d(3, 5, (3, 2), padding=2, bias=False),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(5, 41, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(41, 3, (1, 3)),
            nn.Flatten(),
            nn.Linear(3 * 5 * 5, 19, bias=False),
            nn.ReLU(),
            nn.Linear(19, 7),
        ],
    ),
    "images flattened at once": (
        (2, 4, 4),
        lambda: [nn.Flatten(), nn.Linear(32, 70), nn.ReLU(), nn.Linear(70, 3)],
    ),
    "vectors, one layer": ((13,), lambda: [nn.Linear(13, 4)]),
}
WORK = {
    "full": LocalWork(None, 0.1),
    "single": LocalWork(1, 0.01),
    "momentum": LocalWork(8, 0.1, momentum=0.9),
    "proximal": LocalWork(64, 0.1, momentum=0.5, proximal=0.3),
}


def problem_of(kind, work="full"):
    shape, layers = CHAINS[kind]
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(1)
        model = nn.Sequential(*layers())
    return four_clients(model, shape, WORK[work], classes=model[-1].out_features)


def compiled(problem):
    return CompiledModels(read_chain(problem.model, problem.data[0].shape[1:]))


def assert_agree(found, expected):
    for name, values in expected.parameters.items():
        assert torch.allclose(found.parameters[name].double(), values, rtol=0, atol=2e-6), name
    assert torch.allclose(found.losses, expected.losses, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("work", WORK)
def test_training_is_that_of_the_loop(kind, work):
    problem = problem_of(kind, work)
    before = copy.deepcopy(problem.stacked)
    assert_agree(compiled(problem).train(problem), train_sequential(in_double(problem)))
    for name, values in before.items():
        assert torch.equal(problem.stacked[name], values), "the global models are left alone"


def test_pieces_of_a_batch_are_one_step(monkeypatch):
    problem = problem_of("plain")
    monkeypatch.setattr("fedcohort.training.accelerators.c_chain.layout._VALUES_AT_ONCE", 1)
    models = compiled(problem)
    assert models._layout.samples_at_once == 1
    assert_agree(models.train(problem), train_sequential(in_double(problem)))


@pytest.mark.parametrize("pool_first", [True, False])
def test_ties_in_pools_and_at_zero_are_decided_as_in_pytorch(pool_first):
    # Small whole numbers: windows have several largest values, often 0, which come of different
    # inputs. One step from them shows who got the gradient.
    generator = torch.Generator().manual_seed(0)
    after = [nn.MaxPool2d(2), nn.ReLU()] if pool_first else [nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(nn.Conv2d(1, 9, 3), *after, nn.Flatten(), nn.Linear(144, 2))
    for parameter in model.parameters():
        parameter.data = torch.randint(-1, 2, parameter.shape, generator=generator).float()
    problem = four_clients(model, (1, 10, 10), LocalWork(None, 0.5), classes=2)
    x = torch.randint(-1, 2, problem.data[0].shape, generator=generator).float()
    problem = dataclasses.replace(
        problem,
        data=(x, problem.data[1]),
        stacked={
            name: values[:1].expand(2, *values.shape[1:])
            for name, values in problem.stacked.items()
        },
    ).only(slice(0, 1))
    expected = train_sequential(in_double(problem))
    found = compiled(problem).train(problem)
    for name, values in expected.parameters.items():
        assert torch.allclose(found.parameters[name].double(), values, rtol=0, atol=1e-5), name


def test_results_depend_neither_on_the_threads_nor_on_the_other_clients(workers):
    problem = problem_of("plain", "momentum")
    together = compiled(problem).train(problem)
    for count in (1, 5):
        workers(count)
        models = compiled(problem)
        for part in (slice(None), slice(1, 2), torch.tensor([3, 1])):
            found = models.train(problem.only(part))
            assert torch.equal(found.losses, together.losses[part])
            for name, values in found.parameters.items():
                assert torch.equal(values, together.parameters[name][part])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_job_that_diverges_is_not_finite_and_spoils_no_other(bad, workers):
    problem = problem_of("plain", "momentum")
    x, y = problem.data
    damaged = x.clone()
    damaged[problem.pool[:13]] = bad
    broken = dataclasses.replace(problem, data=(damaged, y))
    # One thread does all jobs, the broken one between others, in the same memory.
    workers(1)
    models = compiled(problem)
    healthy, found, again = map(models.train, (problem, broken, problem))
    assert not found.losses[0].isfinite()
    for name, values in healthy.parameters.items():
        assert torch.equal(found.parameters[name][1:], values[1:])
        assert torch.equal(again.parameters[name], values)
    accuracy, _ = models.evaluate(problem.model, problem.stacked, problem.data, problem.task)
    models.evaluate(problem.model, problem.stacked, broken.data, problem.task)
    after, _ = models.evaluate(problem.model, problem.stacked, problem.data, problem.task)
    assert torch.equal(after, accuracy)


@pytest.mark.parametrize("place", range(4))
def test_what_is_not_a_number_wins_in_a_pool(place):
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 3, 1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)
        )
    problem = four_clients(model, (1, 4, 4), LocalWork(None, 0.1), classes=2)
    # One value of one sample of the first client.
    x, y = problem.data
    x[problem.pool[0], 0, place // 2, place % 2] = float("nan")
    expected, found = train_sequential(problem), compiled(problem).train(problem)
    assert found.losses.isnan().tolist() == expected.losses.isnan().tolist() == [True, *[False] * 3]
    for name, values in expected.parameters.items():
        assert torch.equal(found.parameters[name].isnan(), values.isnan()), name
    _, loss = compiled(problem).evaluate(model, problem.stacked, (x, y), problem.task)
    assert loss.isnan().all()


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("samples", [1, 512, 700])
def test_evaluation_is_that_of_the_loop(kind, samples):
    problem = problem_of(kind)
    model, stacked = problem.model, problem.stacked
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(samples, *CHAINS[kind][0], generator=generator)
    y = torch.randint(0, model[-1].out_features, (samples,), generator=generator)
    expected, losses = SEQUENTIAL.evaluate(copy.deepcopy(model), stacked, (x, y), problem.task)
    accuracy, loss = compiled(problem).evaluate(model, stacked, (x, y), problem.task)
    assert accuracy.tolist() == pytest.approx(expected.tolist(), abs=1e-12)
    assert loss.tolist() == pytest.approx(losses.tolist(), rel=1e-5)
    alone = {name: values[1:] for name, values in stacked.items()}
    for score, own in zip(
        (accuracy, loss),
        compiled(problem).evaluate(model, alone, (x, y), problem.task),
        strict=True,
    ):
        assert own[0] == score[1], "a model's score depends on the one beside it"


def test_groups_are_measured_as_the_loop_measures_them():
    problem = problem_of("colours, padding, no bias, odd sides")
    samples = torch.randperm(90, generator=torch.Generator().manual_seed(0))
    groups = Groups(samples, torch.tensor([4, 85, 1]), torch.tensor([1, 0, 1]))
    given = problem.model, problem.stacked, problem.data, groups, problem.task
    for found, expected in zip(
        compiled(problem).measure(*given), SEQUENTIAL.measure(*given), strict=True
    ):
        assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-5)
