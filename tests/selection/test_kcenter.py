import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import chisquare

from fedcohort import make_selector
from fedcohort.selection.kcenter import farthest_first
from fedcohort.testing import check_selector


def test_conformance():
    check_selector("kcenter")


def _radius(points, centres):
    distances = np.linalg.norm(points[:, None] - points[None, list(centres)], axis=2)
    return distances.min(axis=1).max()


@settings(deadline=None, max_examples=80)
@given(st.data(), st.integers(2, 8), st.integers(0, 2**32 - 1))
def test_no_client_is_farther_than_twice_the_best_possible(data, n, seed):
    coordinates = st.integers(-20, 20).map(float)
    points = data.draw(arrays(np.float64, (n, 2), elements=coordinates))
    k = data.draw(st.integers(1, n))
    chosen = farthest_first(points, k, rng=np.random.default_rng(seed))
    assert len(set(chosen.tolist())) == k
    best = min(_radius(points, centres) for centres in itertools.combinations(range(n), k))
    assert _radius(points, chosen) <= 2 * best + 1e-9


def test_each_is_the_farthest_from_those_before():
    points = np.array([[0.0], [1.0], [4.0], [9.0], [15.0]])
    following = {0: [4, 3], 1: [4, 3], 2: [4, 3], 3: [0, 4], 4: [0, 3]}
    # From 4 the ends are 4 and 11 away: 15, then of 0 (4), 1 (3), 9 (5) the last. And so on.
    for seed in range(20):
        first, *others = farthest_first(points, 3, rng=np.random.default_rng(seed)).tolist()
        assert others == following[first]


def test_the_first_is_uniform_and_so_are_ties():
    profiles = np.array([[0.0], [0.0], [0.0], [7.0]])
    selector = make_selector("kcenter").fit(profiles)
    rng = np.random.default_rng(0)
    first = [int(selector.select(1, rng=rng).ids[0]) for _ in range(2000)]
    assert chisquare(np.bincount(first, minlength=4)).pvalue > 1e-3
    # 3 is always there; the other place falls on each of the three equal clients alike.
    others = np.concatenate([selector.select(2, rng=rng).ids for _ in range(2000)])
    counts = np.bincount(others, minlength=4)
    assert counts[3] == 2000
    assert chisquare(counts[:3]).pvalue > 1e-3


def test_slices_do_not_change_the_distances():
    points = np.random.default_rng(0).normal(size=(5000, 130)).astype(np.float32)
    chosen = farthest_first(points, 6, rng=np.random.default_rng(1))
    exact = np.linalg.norm(points[:, None] - points[chosen[:-1]], axis=2).min(axis=1)
    assert exact[chosen[-1]] == exact.max()


def test_huge_and_tiny_profiles_are_compared_as_any_others():
    profiles = np.random.default_rng(0).normal(size=(12, 3))
    scaled = [np.ldexp(profiles, power) for power in (-1000, -600, 600, 1000)]
    scaled.append(np.ldexp(profiles, 100).astype(np.float32))
    expected = farthest_first(profiles, 5, rng=np.random.default_rng(1))
    for points in scaled:
        chosen = farthest_first(points, 5, rng=np.random.default_rng(1))
        np.testing.assert_array_equal(chosen, expected)
