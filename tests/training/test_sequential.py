"""The oracle against the text-book rule."""

import pytest
import torch
import torch.nn.functional as F
from local_problems import four_clients
from made_models import made

from fedcohort.training.problem import LocalWork
from fedcohort.training.sequential import train_sequential


def small(work):
    return four_clients(made("cnn-small", (1, 8, 8), 10, 0), (1, 8, 8), work)


def test_a_full_batch_pass_is_one_gradient_step():
    problem = small(LocalWork(None, 0.1))
    trained = train_sequential(problem.only(slice(0, 1)))
    (x, y), own = problem.data, problem.pool[:13]
    fresh = made("cnn-small", (1, 8, 8), 10, 0)
    loss = F.cross_entropy(fresh(x[own]), y[own])
    gradients = torch.autograd.grad(loss, list(fresh.parameters()))
    for (name, values), gradient in zip(fresh.named_parameters(), gradients, strict=True):
        assert torch.allclose(trained.parameters[name][0], values - 0.1 * gradient, atol=1e-6)
    assert trained.losses[0] == pytest.approx(loss.item(), abs=1e-6)


def test_fedprox_draws_clients_back_to_the_global_model():
    free, drawn = (small(LocalWork(8, 0.05, 0.0, strength)) for strength in (0.0, 1.0))

    def distance(problem):
        trained, stacked, start = train_sequential(problem), problem.stacked, problem.jobs.model
        moved = [(v - stacked[n][start]).flatten(1) for n, v in trained.parameters.items()]
        return torch.cat(moved, dim=1).norm(dim=1)

    assert (distance(drawn) < distance(free)).all()
    # w1 = w0 - lr·g0 whatever the strength, so the first step is the same.
    whole = [
        train_sequential(small(LocalWork(None, 0.05, 0.0, strength)).only(slice(0, 1)))
        for strength in (0.0, 1.0)
    ]
    assert torch.equal(*(trained.parameters["fc2.weight"] for trained in whole))
