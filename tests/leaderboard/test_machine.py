import dataclasses

import numpy as np
import pytest

from fedcohort.leaderboard.machine import EARLY, compare_machines
from fedcohort.leaderboard.published import Origin

HERE = Origin("CPU, mine", "2.13", "float32")


@pytest.fixture
def one(published, conditions):
    return published.entries(conditions[0], [0])["fedavg"]


def checked(condition, published, apart):
    moved = dataclasses.replace(published, train=published.train + np.array(apart))
    return compare_machines(condition, published, moved, Origin("H200", "2.11", "bfloat16"), HERE)


def test_the_same_run_is_the_same(one, conditions):
    check = checked(conditions[0], one, 1e-16)
    assert check.agrees
    assert str(check) == (
        "Check: fedavg, seed 0 in digits-1 came out as published, in every round."
    )


def test_rounding_shows_late(one, conditions):
    late = np.where(np.arange(one.train.shape[1]) < EARLY, 0.001, 0.06)
    check = checked(conditions[0], one, late)
    assert (check.early, check.largest) == pytest.approx((0.001, 0.06))
    assert check.agrees
    assert "but for rounding" in str(check)


@pytest.mark.parametrize("apart", [0.01 * (np.arange(7) == 2), 0.2 * (np.arange(7) > 4)])
def test_what_is_no_rounding_is_said_with_both_machines(one, conditions, apart):
    check = checked(conditions[0], one, apart)
    assert not check.agrees
    for word in ("DIFFERS", "H200 (PyTorch 2.11, bfloat16)", "CPU, mine (PyTorch 2.13, float32)"):
        assert word in str(check)
    assert check.to_json()["agrees"] is False
