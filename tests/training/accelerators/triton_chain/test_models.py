"""The fused kernels, in Triton's interpreter, against the text-book loop."""

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="Triton, whose interpreter these tests use, is for Linux")

from fedcohort.training.accelerators.triton_chain import models as fused_models
from fedcohort.training.accelerators.triton_chain.models import FusedModels, bytes_per_model
from fedcohort.training.architectures.cnn import PaperCNN, SmallCNN
from fedcohort.training.architectures.mlp import MLP
from fedcohort.training.layers import read_chain
from fedcohort.training.problem import Jobs, LocalProblem, LocalWork
from fedcohort.training.sequential import SEQUENTIAL, train_sequential
from fedcohort.training.task import classification

TASK = classification(10)


def _odd(input_shape, classes):
    """Padding, no bias, a pool before its ReLU, sides that a pool cuts, wide and narrow layers."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 6, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(6, 70, (3, 2), padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(70, 10, 2),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(40, 9, bias=False),
        nn.ReLU(),
        nn.Linear(9, classes),
    )


def _setting(factory, input_shape, *, classes=10, samples=60):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        models = [factory(input_shape, classes) for _ in range(2)]
        x = torch.randn(samples, *input_shape)
        y = torch.randint(0, classes, (samples,))
        pool = torch.randperm(samples)
    names = [name for name, _ in models[0].named_parameters()]
    stacked = {n: torch.stack([m.get_parameter(n).detach() for m in models]) for n in names}
    return models[0], stacked, (x, y), pool


# Three clients of unequal sizes, two of the second run; one finishes before the others.
JOBS = Jobs(
    model=torch.tensor([0, 1, 1]),
    start=torch.tensor([0, 10, 30]),
    size=torch.tensor([10, 20, 7]),
    key=torch.tensor([3, 4, 5]),
    passes=torch.tensor([1.0, 1.0, 1.5], dtype=torch.float64),
)


@pytest.mark.parametrize(
    ("factory", "shape", "work"),
    [
        (SmallCNN, (1, 8, 8), LocalWork(8, 0.1, 0.5)),
        (SmallCNN, (1, 8, 8), LocalWork(None, 0.1)),
        (MLP, (1, 8, 8), LocalWork(8, 0.1)),
        (_odd, (3, 11, 11), LocalWork(16, 0.1, 0.9, 0.5)),
        (PaperCNN, (1, 28, 28), LocalWork(None, 0.1)),
    ],
    ids=["small", "full-batch", "mlp", "odd", "paper"],
)
def test_training_agrees_with_the_loop(factory, shape, work):
    model, stacked, data, pool = _setting(factory, shape)
    jobs = JOBS[:1] if factory is PaperCNN else JOBS  # The interpreter is slow.
    problem = LocalProblem(model, stacked, jobs, data, pool, work, TASK)
    ours = FusedModels(read_chain(model, shape), torch.float32).train(problem)
    theirs = train_sequential(problem)
    for name, values in theirs.parameters.items():
        moved = (values - stacked[name][jobs.model]).abs().max()
        assert (ours.parameters[name] - values).abs().max() < 1e-4 * moved, name
    assert torch.allclose(ours.losses, theirs.losses, atol=1e-5)


def test_a_model_trains_the_same_whatever_it_is_trained_beside():
    model, stacked, data, pool = _setting(_odd, (3, 11, 11))
    fused = FusedModels(read_chain(model, (3, 11, 11)), torch.float32)
    problem = LocalProblem(model, stacked, JOBS, data, pool, LocalWork(None, 0.1, 0.5), TASK)
    together, alone = fused.train(problem), fused.train(problem.only(slice(1, 2)))
    for name, values in alone.parameters.items():
        assert torch.equal(values[0], together.parameters[name][1]), name


def test_buffers_are_used_again_without_leaving_traces():
    model, stacked, data, pool = _setting(SmallCNN, (1, 8, 8))
    fused = FusedModels(read_chain(model, (1, 8, 8)), torch.float32)
    problem = LocalProblem(model, stacked, JOBS, data, pool, LocalWork(16, 0.1, 0.5), TASK)
    first, _, again = map(fused.train, (problem, problem.only(slice(0, 2)), problem))
    for name, values in first.parameters.items():
        assert torch.equal(values, again.parameters[name]), name
    assert torch.equal(first.losses, again.losses)


def test_evaluation_agrees_with_the_loop_in_pieces_too(monkeypatch):
    model, stacked, data, _ = _setting(SmallCNN, (1, 8, 8))
    expected = SEQUENTIAL.evaluate(model, stacked, data, TASK)
    layers = read_chain(model, (1, 8, 8))
    for room in (1 << 30, 50_000):
        monkeypatch.setattr(fused_models, "_EVALUATION_BYTES", room)
        accuracy, loss = FusedModels(layers, torch.float32).evaluate(model, stacked, data, TASK)
        assert accuracy.tolist() == expected[0].tolist()
        assert loss.tolist() == pytest.approx(expected[1].tolist(), abs=1e-6)


def test_the_memory_of_a_model_is_estimated_from_above():
    batch = 54
    layers = read_chain(PaperCNN((1, 28, 28), 10), (1, 28, 28))
    least = 431_080 * (4 + 2) + batch * (2880 + 800 + 500 + 10) * (2 + 2)
    assert least < bytes_per_model(layers, batch, torch.bfloat16) < 4 * least
