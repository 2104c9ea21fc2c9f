"""The compiled kernels against PyTorch's: training, evaluation, averaging, the first layer."""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from four_jobs import four_jobs
from torch import nn

from fedcohort.training.aggregation import aggregate
from fedcohort.training.chain import forward, read_chain
from fedcohort.training.compiled.averaging import average_compiled
from fedcohort.training.compiled.compiler import kernels
from fedcohort.training.compiled.first_layer import first_layer, is_compiled
from fedcohort.training.compiled.pooling import pool_and_rectify
from fedcohort.training.compiled.trainer import Compiled
from fedcohort.training.cpu_evaluation import client_losses_on_cpu
from fedcohort.training.evaluation import client_losses, evaluate
from fedcohort.training.local import train_sequential
from fedcohort.training.plan import LocalWork

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


def problem(kind, sizes=(13, 27, 20, 30)):
    """Four clients of two runs, of different sizes and with different work."""
    shape, layers = CHAINS[kind]
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(1)
        model = nn.Sequential(*layers())
    total = sum(sizes)
    x = torch.randn(total, *shape, generator=generator)
    y = torch.randint(0, model[-1].out_features, (total,), generator=generator)
    stacked = {n: torch.stack([p.detach(), 0.9 * p.detach()]) for n, p in model.named_parameters()}
    return model, stacked, four_jobs(sizes), (x, y), torch.randperm(total, generator=generator)


def compiled(model, x, threads=2):
    return Compiled(read_chain(model, x.shape[1:]), threads)


def in_double(model, stacked, jobs, data, pool):
    wide = {name: values.double() for name, values in stacked.items()}
    return copy.deepcopy(model).double(), wide, jobs, (data[0].double(), data[1]), pool


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("work", WORK)
def test_training_is_that_of_the_loop(kind, work):
    given = problem(kind)
    before = copy.deepcopy(given[1])
    expected = train_sequential(*in_double(*given), WORK[work])
    found = compiled(given[0], given[3][0])(*given, WORK[work])
    for name, values in expected.parameters.items():
        assert torch.allclose(found.parameters[name].double(), values, rtol=0, atol=2e-6), name
        assert torch.equal(given[1][name], before[name]), "the global models are left alone"
    assert torch.allclose(found.losses, expected.losses, rtol=0, atol=2e-6)


def test_pieces_of_a_batch_are_one_step(monkeypatch):
    given = problem("plain")
    monkeypatch.setattr("fedcohort.training.compiled.program._VALUES_AT_ONCE", 1)
    trainer = compiled(given[0], given[3][0])
    assert trainer.program.samples_at_once == 1
    expected = train_sequential(*in_double(*given), WORK["full"])
    found = trainer(*given, WORK["full"])
    for name, values in expected.parameters.items():
        assert torch.allclose(found.parameters[name].double(), values, rtol=0, atol=2e-6), name


def test_results_do_not_depend_on_the_number_of_threads():
    given = problem("plain")
    one, five = (compiled(given[0], given[3][0], n)(*given, WORK["momentum"]) for n in (1, 5))
    assert torch.equal(one.losses, five.losses)
    for name, values in one.parameters.items():
        assert torch.equal(values, five.parameters[name])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_job_that_diverges_is_not_finite_and_spoils_no_other(bad):
    given = problem("plain")
    model, stacked, jobs, (x, y), pool = given
    broken = x.clone()
    broken[pool[:13]] = bad
    # One thread does all jobs, the broken one between others, in the same memory.
    trainer = compiled(model, x, threads=1)
    healthy = trainer(*given, WORK["momentum"])
    found = trainer(model, stacked, jobs, (broken, y), pool, WORK["momentum"])
    again = trainer(*given, WORK["momentum"])
    assert not found.losses[0].isfinite()
    for name, values in healthy.parameters.items():
        assert torch.equal(found.parameters[name][1:], values[1:])
        assert torch.equal(again.parameters[name], values)
    accuracy, _ = trainer.evaluate(model, stacked, (x, y))
    trainer.evaluate(model, stacked, (broken, y))
    assert torch.equal(trainer.evaluate(model, stacked, (x, y))[0], accuracy)


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("samples", [1, 512, 700])
def test_evaluation_is_that_of_the_plain_loop(kind, samples):
    model, stacked, _, _, _ = problem(kind)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(samples, *CHAINS[kind][0], generator=generator)
    y = torch.randint(0, model[-1].out_features, (samples,), generator=generator)
    expected, losses = evaluate(copy.deepcopy(model), stacked, (x, y), batched=False)
    accuracy, loss = compiled(model, x).evaluate(model, stacked, (x, y))
    assert accuracy.tolist() == pytest.approx(expected.tolist(), abs=1e-12)
    assert loss.tolist() == pytest.approx(losses.tolist(), rel=1e-5)


def test_client_losses_are_those_of_the_plain_way():
    model, stacked, _, data, _ = problem("colours, padding, no bias, odd sides")
    parameters = {name: values[1] for name, values in stacked.items()}
    samples = torch.randperm(90, generator=torch.Generator().manual_seed(0))
    sizes = torch.tensor([4, 85, 1])
    expected = client_losses(model, parameters, data, samples, sizes).tolist()
    own = compiled(model, data[0]).client_losses(model, parameters, data, samples, sizes)
    assert own.tolist() == pytest.approx(expected, rel=1e-5)
    on_cpu = client_losses_on_cpu(model, parameters, data, samples, sizes)
    assert on_cpu.tolist() == pytest.approx(expected, rel=1e-5)


def test_averaging_is_that_of_the_general_way():
    generator = torch.Generator().manual_seed(0)
    shapes = {"w": (3, 5), "b": (7,)}
    stacked = {n: torch.randn(3, *s, generator=generator) for n, s in shapes.items()}
    local = {n: torch.randn(6, *s, generator=generator) for n, s in shapes.items()}
    slots = torch.tensor([[0, 1, 2], [3, 4, -1], [5, -1, -1]])
    weights = torch.tensor([[0.2, 0.3, 0.5], [0.4, 0.6, 0.0], [1.0, 0.0, 0.0]]).double()
    average = functools.partial(average_compiled, stacked)
    everyone = torch.ones(6, dtype=torch.bool)
    local["b"][1, 2], local["w"][5, 0, 0] = float("nan"), float("-inf")
    some = torch.tensor([True, True, True, False, True, True])
    for trusted in (everyone, some, ~everyone):
        before = trusted.clone()
        moved, used = average(local, slots, weights, trusted)
        expected, counted = aggregate(stacked, local, slots, weights, trusted)
        assert torch.equal(used, counted)
        assert torch.equal(trusted, before)
        for name, values in expected.items():
            assert torch.allclose(moved[name], values, rtol=0, atol=1e-6)
        assert torch.equal(moved["w"][2], stacked["w"][2]), "of whom nobody counts, stays"
    # A model's mean is the same to the last bit, whatever it is computed beside.
    alone = {n: v[1:2] for n, v in stacked.items()}, {n: v[3:5] for n, v in local.items()}
    share = average_compiled(*alone, torch.tensor([[0, 1]]), weights[1:2, :2], everyone[:2])[0]
    assert torch.equal(share["w"][0], average(local, slots, weights, everyone)[0]["w"][1])


@pytest.mark.parametrize("pool", [1, 2])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("channels", "filters", "padding"), [(1, 20, 0), (3, 32, 2), (4, 3, 1)])
def test_the_first_layer_and_its_gradients_are_pytorchs(
    pool, relu, bias, channels, filters, padding
):
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(0)
        convolution = nn.Conv2d(channels, filters, (5, 4), padding=padding, bias=bias)
        parts = [convolution, *[nn.ReLU()] * relu, *[nn.MaxPool2d(2)] * (pool - 1)]
        x = torch.randn(6, channels, 13, 12)
        rows = nn.Sequential(*parts)(x).flatten(1).shape[1]
        model = nn.Sequential(*parts, nn.Flatten(), nn.Linear(rows, 2))
        # Ties: a window of equal values, and a whole image that the ReLU holds back.
        x[0] = 0.0
        x[1, :, :8] = 1.0
    layer = read_chain(model, x.shape[1:])[0]
    assert is_compiled(layer, x)
    assert not is_compiled(layer, x.double())
    found = first_layer(layer, convolution.weight, convolution.bias, x)
    slope = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    own = torch.autograd.grad((found * slope).sum(), list(convolution.parameters()))
    wide = copy.deepcopy(nn.Sequential(*parts)).double()
    expected = wide(x.double())
    theirs = torch.autograd.grad((expected * slope).sum(), list(wide.parameters()))
    assert torch.allclose(found.double(), expected, rtol=0, atol=1e-5)
    assert found.is_contiguous(memory_format=torch.channels_last)
    for one, other in zip(own, theirs, strict=True):
        assert torch.allclose(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pool", [1, 2])
def test_ties_are_decided_as_in_pytorch(pool):
    # Small whole numbers: windows have several largest values, often 0, which come of different
    # inputs; and sums are exact.
    generator = torch.Generator().manual_seed(0)
    parts = [nn.Conv2d(1, 9, 3), *[nn.MaxPool2d(2)] * (pool - 1), nn.ReLU()]
    for parameter in parts[0].parameters():
        parameter.data = torch.randint(-1, 2, parameter.shape, generator=generator).float()
    x = torch.randint(-1, 2, (5, 1, 10, 10), generator=generator).float()
    expected = nn.Sequential(*parts)(x)
    model = nn.Sequential(*parts, nn.Flatten(), nn.Linear(expected[0].numel(), 2))
    layer = read_chain(model, x.shape[1:])[0]
    found = first_layer(layer, parts[0].weight, parts[0].bias, x)
    assert torch.equal(found, expected)
    slope = torch.randint(-3, 4, found.shape, generator=generator).float()
    own, theirs = (
        torch.autograd.grad((out * slope).sum(), list(parts[0].parameters()))
        for out in (found, expected)
    )
    assert all(map(torch.equal, own, theirs))


@pytest.mark.parametrize("shape", [(2, 50, 8, 8), (3, 16, 7, 5), (1, 3, 2, 2)])
@pytest.mark.parametrize("relu", [True, False])
def test_pools_and_their_gradients_are_pytorchs(shape, relu):
    generator = torch.Generator().manual_seed(0)
    # Whole numbers have ties, and one that is not a number wins wherever it stands.
    x = torch.randint(-2, 3, shape, generator=generator).float()
    x[0, 0, 0, 1] = float("nan")
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    found = pool_and_rectify(x, relu=relu)
    expected = F.max_pool2d(x, 2)
    expected = expected.relu() if relu else expected
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())
    assert found.is_contiguous(memory_format=torch.channels_last)
    slope = torch.randn(found.shape, generator=generator)
    own, theirs = (torch.autograd.grad(out, x, slope)[0] for out in (found, expected))
    assert torch.equal(own, theirs)


def test_what_is_not_a_number_wins_in_a_pool():
    parts = [nn.Conv2d(1, 3, 1), nn.MaxPool2d(2), nn.ReLU()]
    model = nn.Sequential(*parts, nn.Flatten(), nn.Linear(12, 2))
    x = torch.randn(4, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    for place in range(4):
        x[place, 0, place // 2, place % 2] = float("nan")
    layer = read_chain(model, x.shape[1:])[0]
    found = first_layer(layer, parts[0].weight, parts[0].bias, x)
    assert torch.equal(found.isnan(), nn.Sequential(*parts)(x).isnan())


def test_what_is_not_a_number_goes_through_the_first_layer():
    model, _, _, (x, _), _ = problem("plain")
    x[0, 0, 3, 3], x[1, 0, 3, 3] = float("nan"), float("inf")
    layers = read_chain(model, x.shape[1:])
    logits = forward(layers, dict(model.named_parameters()), x)
    assert logits[0].isnan().all()
    assert not logits[1].isfinite().all()
    assert torch.allclose(logits[2:], model(x[2:]), rtol=0, atol=1e-6)
    losses = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.int64), reduction="none")
    assert losses[2:].isfinite().all()
