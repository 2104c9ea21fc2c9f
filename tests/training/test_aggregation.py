import pytest
import torch
from local_problems import four_clients
from made_models import made

from fedcohort.training.aggregation import aggregate
from fedcohort.training.batched import train_batched
from fedcohort.training.problem import LocalWork


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


def test_numbers_without_a_shape_and_weights_in_any_layout_are_averaged_as_all_others():
    last = torch.randn(3, 4, 2, 2, 5, generator=torch.Generator().manual_seed(0))
    local = {"scale": torch.tensor([1.0, 2.0, float("nan")]), "w": last.movedim(-1, 2)}
    stacked = {"scale": torch.zeros(1), "w": torch.zeros(1, 4, 5, 2, 2)}
    slots = torch.tensor([[0, 1, 2]])
    weights = torch.tensor([[0.25, 0.25, 0.5]], dtype=torch.float64)
    moved, used = aggregate(stacked, local, slots, weights, torch.ones(3, dtype=torch.bool))
    assert used.tolist() == [True, True, False]
    assert moved["scale"].tolist() == [1.5]
    assert torch.allclose(moved["w"][0], local["w"][:2].mean(0))
    assert moved["w"].is_contiguous()


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


def test_slots_are_averaged_alike_at_once_and_one_by_one(monkeypatch):
    model = made("cnn-small", (1, 8, 8), 10, 0)
    problem = four_clients(model, (1, 8, 8), LocalWork(8, 0.1))
    local = train_batched(problem).parameters
    local["fc2.bias"][1, 3] = float("nan")
    slots, weights = torch.tensor([[0, 3], [1, 2]]), torch.full((2, 2), 0.5).double()
    trusted = torch.ones(4, dtype=torch.bool)
    found = []
    for few in (2**20, 0):
        monkeypatch.setattr("fedcohort.training.aggregation._FEW_VALUES", few)
        moved, used = aggregate(problem.stacked, local, slots, weights, trusted)
        assert used.tolist() == [True, False, True, True]
        found.append(moved)
    for name, values in found[0].items():
        assert torch.equal(values, found[1][name])


@pytest.mark.parametrize("trusted", [True, False], ids=["everyone", "some"])
def test_a_models_mean_does_not_depend_on_the_cohorts_beside_it(trusted):
    generator = torch.Generator().manual_seed(0)
    stacked = {"w": torch.randn(2, 500, generator=generator)}
    local = {"w": torch.randn(53, 500, generator=generator)}
    # The second cohort has 40 members, the first 13: its empty slots must not change its sums.
    slots = torch.full((2, 40), -1)
    slots[0, :13], slots[1] = torch.arange(13), torch.arange(13, 53)
    weights = torch.rand(2, 40, generator=generator, dtype=torch.float64) * (slots >= 0)
    counts = torch.ones(53, dtype=torch.bool)
    counts[1] = trusted
    together, _ = aggregate(stacked, local, slots, weights, counts)
    alone, _ = aggregate(
        {"w": stacked["w"][:1]},
        {"w": local["w"][:13]},
        slots[:1, :13],
        weights[:1, :13],
        counts[:13],
    )
    assert torch.equal(together["w"][0], alone["w"][0])
