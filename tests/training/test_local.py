"""The batched trainer against the plain one, and the plain one against the text-book rule."""

import pytest
import torch
import torch.nn.functional as F

from fedcohort.training.aggregation import aggregate
from fedcohort.training.local import train_batched, train_sequential
from fedcohort.training.models import build_model
from fedcohort.training.plan import Jobs, LocalWork


@pytest.fixture
def setting():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, 1, 8, 8, generator=generator)
    y = torch.randint(0, 10, (90,), generator=generator)
    models = [build_model("cnn-small", (1, 8, 8), 10, seed) for seed in (0, 1)]
    stacked = {
        name: torch.stack([dict(m.named_parameters())[name].detach() for m in models])
        for name, _ in models[0].named_parameters()
    }
    jobs = Jobs(
        model=torch.tensor([0, 1, 1, 0]),
        start=torch.tensor([0, 13, 40, 60]),
        size=torch.tensor([13, 27, 20, 30]),
        key=torch.tensor([5, 6, 7, 8]),
        passes=torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64),
    )
    return models[0], stacked, jobs, (x, y), torch.randperm(90, generator=generator)


@pytest.mark.parametrize("batch_size", [None, 1, 8, 64])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_batched_equals_sequential_with_unequal_clients_and_work(setting, batch_size, momentum):
    work = LocalWork(batch_size, 0.05, momentum, proximal=momentum / 3)
    plain, batched = train_sequential(*setting, work), train_batched(*setting, work)
    for name, values in plain.parameters.items():
        assert torch.allclose(values, batched.parameters[name], atol=1e-5), name
    assert torch.allclose(plain.losses, batched.losses, atol=1e-5)


def test_splitting_the_jobs_changes_nothing(setting):
    work = LocalWork(8, 0.05, 0.5)
    whole, parts = train_batched(*setting, work), train_batched(*setting, work, jobs_at_once=3)
    for name, values in whole.parameters.items():
        assert torch.allclose(values, parts.parameters[name], atol=1e-6)


def test_a_full_batch_pass_is_one_gradient_step(setting):
    model, stacked, jobs, (x, y), pool = setting
    one = Jobs(*(getattr(jobs, f)[:1] for f in ("model", "start", "size", "key", "passes")))
    trained = train_sequential(model, stacked, one, (x, y), pool, LocalWork(None, 0.1))
    own = pool[:13]
    fresh = build_model("cnn-small", (1, 8, 8), 10, 0)
    loss = F.cross_entropy(fresh(x[own]), y[own])
    gradients = torch.autograd.grad(loss, list(fresh.parameters()))
    for (name, values), gradient in zip(fresh.named_parameters(), gradients, strict=True):
        assert torch.allclose(trained.parameters[name][0], values - 0.1 * gradient, atol=1e-6)
    assert trained.losses[0] == pytest.approx(loss.item(), abs=1e-6)


def test_fedprox_draws_clients_back_to_the_global_model(setting):
    model, stacked, jobs, data, pool = setting
    free, drawn = (
        train_sequential(model, stacked, jobs, data, pool, LocalWork(8, 0.05, 0.0, strength))
        for strength in (0.0, 1.0)
    )

    def distance(trained):
        moved = [(v - stacked[n][jobs.model]).flatten(1) for n, v in trained.parameters.items()]
        return torch.cat(moved, dim=1).norm(dim=1)

    assert (distance(drawn) < distance(free)).all()
    # w1 = w0 - lr·g0 whatever the strength, so the first step is the same.
    one = jobs[:1]
    whole = [
        train_sequential(model, stacked, one, data, pool, LocalWork(None, 0.05, 0.0, strength))
        for strength in (0.0, 1.0)
    ]
    assert torch.equal(*(trained.parameters["fc2.weight"] for trained in whole))


def test_aggregation_is_the_weighted_mean():
    stacked = {"w": torch.tensor([[0.0, 0.0], [10.0, 10.0]])}
    local = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0], [20.0, 30.0]])}
    moved, used = aggregate(
        stacked,
        local,
        torch.tensor([[0, 1], [2, -1]]),
        torch.tensor([[0.25, 0.75], [1.0, 0.0]], dtype=torch.float64),
        torch.tensor([True, True, True]),
    )
    assert torch.allclose(moved["w"], torch.tensor([[2.5, 3.5], [20.0, 30.0]]))
    assert used.all()


def test_an_update_that_is_not_finite_is_left_out_and_its_weight_shared():
    stacked = {"w": torch.zeros(2, 2)}
    local = {"w": torch.tensor([[1.0, 1.0], [float("nan"), 1.0], [3.0, 3.0], [float("inf"), 0.0]])}
    slots = torch.tensor([[0, 1, 2], [3, -1, -1]])
    weights = torch.tensor([[0.25, 0.5, 0.25], [1.0, 0.0, 0.0]], dtype=torch.float64)
    moved, used = aggregate(stacked, local, slots, weights, torch.ones(4, dtype=torch.bool))
    assert used.tolist() == [True, False, True, False]
    assert torch.allclose(moved["w"], torch.tensor([[2.0, 2.0], [0.0, 0.0]]))
    trusted = torch.tensor([False, True, True, True])
    moved, used = aggregate(stacked, local, slots, weights, trusted)
    assert used.tolist() == [False, False, True, False]
    assert torch.allclose(moved["w"], torch.tensor([[3.0, 3.0], [0.0, 0.0]]))


def test_slots_are_averaged_alike_at_once_and_one_by_one(setting, monkeypatch):
    model, stacked, jobs, data, pool = setting
    local = train_batched(model, stacked, jobs, data, pool, LocalWork(8, 0.1)).parameters
    local["fc2.bias"][1, 3] = float("nan")
    slots, weights = torch.tensor([[0, 3], [1, 2]]), torch.full((2, 2), 0.5).double()
    found = []
    for few in (2**20, 0):
        monkeypatch.setattr("fedcohort.training.aggregation._FEW_VALUES", few)
        moved, used = aggregate(stacked, local, slots, weights, torch.ones(4, dtype=torch.bool))
        assert used.tolist() == [True, False, True, True]
        found.append(moved)
    for name, values in found[0].items():
        assert torch.equal(values, found[1][name])
