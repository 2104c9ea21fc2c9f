"""How far the gradients of a client's own samples agree."""

import pytest
import torch
from torch import nn

from fedcohort.profiles import gradient_profiles, output_gradients
from fedcohort.training.task import make_task

CLASSES = 4
LOSSES = make_task("classification", CLASSES).losses


def knows_nothing():
    """Return a model whose outputs are all 0."""
    model = nn.Linear(3, CLASSES)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def gradients_of(y, sizes, model=None, losses=LOSSES, x=None):
    y = torch.tensor(y)
    x = torch.randn(len(y), 3, generator=torch.Generator().manual_seed(0)) if x is None else x
    samples = torch.arange(len(y))
    return output_gradients(model or knows_nothing(), x, y, samples, torch.tensor(sizes), losses)


def test_one_class_agrees_and_all_classes_cancel():
    found = gradients_of([2, 2, 2, 0, 1, 2, 3, 0, 0, 1, 1], [3, 4, 4])
    # Of two classes in halves: ‖(1/4 - 1/2, 1/4 - 1/2, 1/4, 1/4)‖² of 3/4.
    assert found.agreements.tolist() == pytest.approx([1, 0, (4 / 16) / (3 / 4)])


def test_it_is_the_gradient_by_the_output_biases():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    # As often as each other, classes weigh the same.
    x, y = torch.randn(8, 3), torch.tensor([0, 1, 0, 1, 2, 0, 1, 2])
    samples, sizes = torch.arange(8), torch.tensor([2, 6])
    found = output_gradients(model, x, y, samples, sizes, LOSSES)
    whole = gradient_profiles(model, x, y, samples, sizes)
    assert torch.allclose(found.means.float(), whole[:, -CLASSES:], atol=1e-6)
    single = gradient_profiles(model, x, y, samples, torch.ones(8, dtype=torch.int64))[:, -CLASSES:]
    squares = single.square().sum(1)
    means = [float(squares[:2].mean()), float(squares[2:].mean())]
    assert found.squares.tolist() == pytest.approx(means, rel=1e-5)


def test_classes_weigh_by_the_root_of_their_frequency():
    # 16 of one class, 4 of a second, 1 of a third: 4, 2 and 1 sevenths; and one class of another.
    y = [0] * 16 + [1] * 4 + [2] + [3] * 5
    found = gradients_of(y, [21, 5])
    shares = torch.tensor([[4, 2, 1, 0], [0, 0, 0, 7]]) / 7
    agreements = (1 / CLASSES - shares).square().sum(1) / (1 - 1 / CLASSES)
    assert found.agreements.tolist() == pytest.approx(agreements.tolist())
    assert torch.allclose(found.means, (1 / CLASSES - shares).double())
    # The order of the samples does not matter, nor who stands beside.
    turned = gradients_of(y[:21][::-1], [21])
    assert turned.agreements.tolist() == pytest.approx(agreements.tolist()[:1])


def test_what_is_shared_is_the_agreement_of_the_clients_means():
    alike = gradients_of([0, 0, 0, 0, 1] * 3, [5] * 3)
    assert alike.shared(torch.full((3,), 5)) == pytest.approx(alike.agreements[0].item())
    large = gradients_of([0, 0, 0, 0, 1, 2, 3], [4, 3])
    mixed = torch.tensor([4, 1, 1, 1]) / 7
    expected = (1 / CLASSES - mixed).square().sum().item() / (1 - 1 / CLASSES)
    assert large.shared(torch.tensor([4, 3])) == pytest.approx(expected)
    assert gradients_of([0, 0, 1, 1, 2, 2, 3, 3], [2] * 4).shared(torch.full((4,), 2)) == 0


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_the_size_of_a_pass_does_not_matter(at_once):
    y, sizes = torch.arange(8) % CLASSES, torch.tensor([3, 5])
    given = knows_nothing(), torch.ones(8, 3), y, torch.arange(8), sizes, LOSSES
    plain, divided = output_gradients(*given), output_gradients(*given, samples_at_once=at_once)
    assert torch.allclose(plain.agreements, divided.agreements)


def test_places_of_a_sequence_are_one_gradient():
    losses = make_task("next-token", CLASSES).losses
    model = nn.Sequential(nn.Embedding(CLASSES, 5), nn.Linear(5, CLASSES))
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    tokens = torch.zeros(4, 2, dtype=torch.int64)
    # The places of each text cancel by halves, and its texts agree.
    y = torch.tensor([[0, 1], [0, 1], [0, 0], [1, 1]])
    found = output_gradients(model, tokens, y, torch.arange(4), torch.tensor([2, 2]), losses)
    assert found.means.shape == (2, CLASSES)
    assert found.agreements.tolist() == pytest.approx([1, (4 / 16) / (3 / 4)])


def test_numbers_are_targets_too():
    losses = make_task("regression", 1).losses
    model = nn.Linear(3, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    found = gradients_of([[1.0], [1.0], [3.0], [-1.0]], [2, 2], model, losses)
    assert found.agreements.tolist() == pytest.approx([1, 1 / 5])


def test_gradients_of_nothing_agree_by_nothing():
    model = nn.Linear(3, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    found = gradients_of([[0.0], [0.0]], [2], model, make_task("regression", 1).losses)
    assert found.agreements.tolist() == [0]
    assert found.shared(torch.tensor([2])) == 0
