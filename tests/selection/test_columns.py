"""Sums over wide matrices."""

import numpy as np
import pytest

from fedcohort.selection import Outcome, make_selector
from fedcohort.selection.columns import sum_over_columns

WIDE = 3 * 2**16 + 17


def updates(rows):
    return np.random.default_rng(0).standard_normal((rows, WIDE), dtype=np.float32)


@pytest.mark.parametrize("processors", [1, 2, 7, None])
def test_the_number_of_processors_does_not_show(monkeypatch, processors):
    matrix = updates(4)

    def part(columns):
        return matrix[:, columns].astype(np.float64) @ matrix[:, columns].T

    expected = part(slice(0, 2**16))
    for start in range(2**16, WIDE, 2**16):
        expected = expected + part(slice(start, start + 2**16))
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    np.testing.assert_array_equal(sum_over_columns(part, WIDE), expected)


def test_products_of_large_updates_are_kept_up_to_date():
    matrix, again = updates(5), 2 * updates(3)[1:]
    selector = make_selector("clustered").fit(clients=6)
    selector.observe(Outcome(np.arange(5), np.ones(5, bool), None, updates=matrix))
    selector._inner_products()
    selector.observe(Outcome(np.array([3, 1]), np.ones(2, bool), None, updates=again))
    matrix[[3, 1]] = again
    wide = matrix.astype(np.float64)
    products = selector._inner_products()
    np.testing.assert_allclose(products[:5, :5], wide @ wide.T, rtol=1e-5, atol=1e-2)
    # Who never sent one counts as nothing.
    assert not products[5].any()
    assert not products[:, 5].any()


def test_updates_too_large_to_be_multiplied_stay_finite():
    matrix = updates(3) * np.float32(1e30)
    selector = make_selector("clustered").fit(clients=3)
    selector.observe(Outcome(np.arange(3), np.ones(3, bool), None, updates=matrix))
    assert np.isfinite(selector._inner_products()).all()
    assert len(selector.select(2, rng=np.random.default_rng(0))) == 2
