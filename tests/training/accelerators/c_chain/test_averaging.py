import functools

import pytest
import torch

from fedcohort.training.accelerators.c_chain.averaging import average_compiled
from fedcohort.training.accelerators.c_chain.compiler import kernels
from fedcohort.training.aggregation import aggregate

pytestmark = pytest.mark.skipif(kernels() is None, reason="needs a C compiler (cc)")


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
