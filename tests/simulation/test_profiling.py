import numpy as np
import pytest
import torch
from made_models import made
from torch import nn

from fedcohort import advise
from fedcohort.federation import Dataset, build_federation
from fedcohort.profiles import fc1_profiles, output_gradients
from fedcohort.simulation import RunConfig
from fedcohort.simulation.federation_profiles import agreements_and_shared, profiles_and_sizes
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.profiling import _on_cpu, client_output_gradients
from fedcohort.training.task import make_task


class Residual(nn.Module):
    """Not a chain."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.second(x + torch.tanh(self.first(x)))


@pytest.mark.parametrize("kind", ["cnn-small", "mlp", Residual])
def test_profiles_made_on_several_cores_are_the_same(kind, monkeypatch):
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(0)
        model = kind() if kind is Residual else made(kind, (1, 8, 8), 10, 0)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(60, 1, 8, 8, generator=generator)
    samples, sizes = torch.randperm(60, generator=generator), torch.tensor([4, 25, 1, *[3] * 10])
    expected = fc1_profiles(model, x, samples, sizes)
    found = []
    for count in (1, 2, 3):
        monkeypatch.setattr("fedcohort.training.workers._limit", count)
        found.append(_on_cpu(model, x, samples, sizes, None))
    assert torch.allclose(found[0], expected, atol=1e-6)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def table(y, client, task, classes):
    """Return a data set of clients whose targets can be told from their inputs."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(len(y), 6)).astype(np.float32)
    x[:, 0] += 3 + y - np.mean(y)
    return Dataset(
        name="table",
        x_train=x,
        y_train=y,
        x_test=x[:0],
        y_test=y[:0],
        classes=classes,
        task=task,
        inputs="table",
        client=client,
        client_names=tuple(map(str, range(int(client.max()) + 1))),
    )


def advice_on(dataset):
    config = RunConfig(dataset="table", cohort=5, skew="natural", model="mlp")
    materials = Materials({"table": dataset})
    cpu = torch.device("cpu")
    profiles, sizes = profiles_and_sizes(config, materials, cpu)
    agreements, shared = agreements_and_shared(config, materials, cpu)
    return advise(profiles, sizes, 5, agreements=agreements, shared=shared), agreements, shared


def test_rare_classes_are_no_difference_between_clients():
    # Nine of ten samples are of class 0: spread evenly, or with the rare ones at two clients.
    rare = (np.arange(1000) % 10 == 0).astype(np.int64)
    even, _, shared = advice_on(table(rare, np.arange(1000) // 50, "classification", 2))
    # By the roots of their frequencies they weigh 3/4 and 1/4.
    assert shared == pytest.approx(2 * (3 / 4 - 1 / 2) ** 2 / (1 / 2), rel=0.15)
    assert even.gain < 1.05
    uneven = advice_on(table(np.sort(rare), np.arange(1000) // 50, "classification", 2))[0]
    assert uneven.gradient_spread > 0.3


def test_numbers_far_from_zero_are_no_difference_between_clients():
    y = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    far, client = 50 + y, np.arange(1000) // 50
    even, agreements, _ = advice_on(table(far, client, "regression", 1))
    assert agreements.min() > 0.99
    assert even.gain < 1.1
    assert advice_on(table(np.sort(far), client, "regression", 1))[0].gradient_spread > 0.3


def test_agreements_made_on_several_cores_are_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(20), rng.integers(1, 30, 20))
    dataset = table(rng.integers(0, 4, len(client)), client, "classification", 4)
    federation = build_federation(dataset, skew=None, clients=None, seed=0)
    x, y = torch.from_numpy(dataset.x_train), torch.from_numpy(dataset.y_train)
    model, task = made("mlp", (6,), 4, 0), make_task("classification", 4)
    samples, sizes = (torch.from_numpy(a) for a in (federation.partition.indices, federation.sizes))
    expected = output_gradients(model, x, y, samples, sizes, task.losses)
    found = []
    for count in (1, 2, 3):
        monkeypatch.setattr("fedcohort.training.workers._limit", count)
        found.append(client_output_gradients(model, (x, y), federation, task))
    assert torch.allclose(found[0].agreements, expected.agreements, atol=1e-6)
    assert torch.equal(found[0].agreements, found[1].agreements)
    assert torch.equal(found[0].means, found[2].means)
