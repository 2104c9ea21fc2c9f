"""Averaged statistics of BatchNorm, beside servers and weights that move more than a mean."""

import dataclasses

import numpy as np
import pytest
import torch
from running import lockstep_of
from torch import nn

from fedcohort.selection.fedavg import FedAvg
from fedcohort.simulation import RunConfig

AVERAGED = RunConfig(
    clients=12,
    cohort=4,
    rounds=4,
    epochs=2.0,
    batch_size=16,
    skew="0.5",
    model=f"{__file__}:Normed",
    selector="fedavg",
)
STATISTICS = ("norm.running_mean", "norm.running_var")


class Normed(nn.Module):
    """A hidden layer with BatchNorm behind it."""

    def __init__(self, input_shape, classes):
        super().__init__()
        self.fc = nn.Linear(int(np.prod(input_shape)), 12)
        self.norm = nn.BatchNorm1d(12)
        self.out = nn.Linear(12, classes)

    def forward(self, x):
        return self.out(self.norm(self.fc(x.flatten(1))).relu())


class Twice(FedAvg):
    """FedAvg whose weights sum to 2, as those of unbiased rules may."""

    def _choose(self, k, rows, rng):
        cohort = super()._choose(k, rows, rng)
        return dataclasses.replace(cohort, weights=2 * cohort.weights)


def after(rounds, **changes):
    lockstep = lockstep_of(dataclasses.replace(AVERAGED, **changes))
    for _ in range(rounds):
        lockstep.advance()
    return {name: values[0] for name, values in lockstep.parameters.items()}


@pytest.mark.parametrize(
    ("more", "factor"),
    [
        ({"server": "avgm:lr=0.5,momentum=0.9"}, 0.5),
        ({"selector": f"{__file__}:Twice"}, 2.0),
        ({"selector": f"{__file__}:Twice", "dropout": 0.5}, 2.0),
    ],
)
def test_statistics_are_the_clients_mean_however_far_parameters_move(more, factor):
    first, mean = after(0), after(1, **{k: v for k, v in more.items() if k == "dropout"})
    moved = after(1, **more)
    for name, values in moved.items():
        if name in STATISTICS:
            expected = mean[name]
        else:
            expected = first[name] + factor * (mean[name] - first[name])
        torch.testing.assert_close(values, expected, atol=1e-5, rtol=1e-5)


def test_rules_hear_parameters_alone_and_of_them_the_output_bias():
    lockstep = lockstep_of(dataclasses.replace(AVERAGED, selector="hics"))
    (member,) = lockstep._members
    before = {name: values[0].clone() for name, values in lockstep.parameters.items()}
    (record,) = lockstep.advance()
    known = member.selector.state()["client.update"]
    assert known.shape == (12, 10)
    heard = np.average(known[list(record.cohort)], axis=0)
    moved = (lockstep.parameters["out.bias"][0] - before["out.bias"]).numpy()
    # Hics averages plainly.
    assert heard == pytest.approx(moved, abs=1e-6)
