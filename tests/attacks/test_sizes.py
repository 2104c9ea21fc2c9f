"""Claims of huge sizes against every selector: a limit that a few liars cannot move."""

import numpy as np
import pytest
from claimed_sizes import CLIENTS, shares
from liars import claimed

from fedcohort import list_selectors
from fedcohort.selection import bounded_sizes


def test_a_size_counts_up_to_four_upper_quartiles_of_the_others():
    sizes = np.array([10.0, 20.0, 30.0, 40.0, 1e12])
    # Without the last, the upper quartile is 30.
    np.testing.assert_array_equal(bounded_sizes(sizes), [10, 20, 30, 40, 120])
    np.testing.assert_array_equal(bounded_sizes(sizes, None), sizes)
    np.testing.assert_array_equal(bounded_sizes(sizes, 1.0), [10, 20, 30, 30, 30])


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 10])
def test_one_liar_is_bounded_in_the_smallest_federations(count):
    sizes = np.full(count, 10.0)
    sizes[-1] = 1e12
    np.testing.assert_array_equal(bounded_sizes(sizes), [10.0] * (count - 1) + [40.0])


def test_a_lone_client_and_nobody_are_left_as_they_are():
    assert bounded_sizes([7.0]).tolist() == [7.0]
    assert bounded_sizes([]).tolist() == []


def test_fewer_than_a_quarter_cannot_move_the_limit():
    rng = np.random.default_rng(0)
    sizes = np.ceil(100 * rng.lognormal(sigma=0.5, size=CLIENTS))
    liars = rng.choice(CLIENTS, 24, replace=False)
    counted = bounded_sizes(claimed(1e6)(sizes, liars))
    honest = np.setdiff1d(np.arange(CLIENTS), liars)
    np.testing.assert_array_equal(counted[honest], sizes[honest])
    assert counted[liars].max() <= 4 * sizes.max()


@pytest.mark.parametrize("spread", [0.0, 0.3, 0.5])
def test_honest_sizes_are_not_cut(spread):
    sizes = np.ceil(500 * np.random.default_rng(1).lognormal(sigma=spread, size=200))
    np.testing.assert_array_equal(bounded_sizes(sizes), sizes)


@pytest.mark.parametrize("name", list_selectors())
def test_a_claim_buys_hardly_a_place_and_hardly_weight(name):
    places, weight = shares(name, 1, bounded_sizes, range(2), 20)
    assert places <= 0.06
    assert weight <= 0.15


@pytest.mark.parametrize("name", ["clustered", "afl", "fedsae"])
def test_without_the_limit_one_claim_is_enough(name):
    places, weight = shares(name, 1, lambda sizes: sizes, range(1), 10)
    assert places >= 0.1
    assert weight > 0.99
