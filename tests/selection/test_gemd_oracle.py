import numpy as np
from scipy.stats import chisquare

from fedcohort import make_selector
from fedcohort.metrics import gemd
from fedcohort.selection import Need
from fedcohort.testing import check_selector


def test_conformance():
    check_selector("gemd-oracle")


def test_it_declares_its_leak():
    assert make_selector("gemd-oracle").needs == {Need.LABEL_COUNTS}


def test_it_reaches_zero_where_one_client_of_each_class_can_be_had():
    counts = np.repeat(np.eye(5) * 30, 4, axis=0)
    selector = make_selector("gemd-oracle").fit(label_counts=counts)
    rng = np.random.default_rng(0)
    for k in (5, 10, 15):
        for _ in range(10):
            assert gemd(counts, selector.select(k, rng=rng).ids) < 1e-12


def test_every_choice_is_the_greedy_one():
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 40, size=(9, 4)).astype(float)
    selector = make_selector("gemd-oracle").fit(label_counts=counts, sizes=counts.sum(axis=1))
    for _ in range(20):
        ids = selector.select(5, rng=rng).ids.tolist()
        for place in range(1, 5):
            others = [c for c in range(9) if c not in ids[:place]]
            best = min(gemd(counts, [*ids[:place], c]) for c in others)
            assert np.isclose(gemd(counts, ids[: place + 1]), best)


def test_the_target_is_everyone_and_not_only_who_is_available():
    # Class 1 is rare among those available but not in the federation.
    counts = np.array([[10.0, 0], [10, 0], [10, 0], [0, 10], [0, 10], [0, 10]])
    selector = make_selector("gemd-oracle").fit(label_counts=counts)
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert 3 in selector.select(2, [0, 1, 2, 3], rng=rng).ids


def test_the_first_is_uniform():
    selector = make_selector("gemd-oracle").fit(label_counts=[[9.0, 1], [5, 5], [0, 3]])
    rng = np.random.default_rng(0)
    first = [int(selector.select(2, rng=rng).ids[0]) for _ in range(1500)]
    assert chisquare(np.bincount(first, minlength=3)).pvalue > 1e-3
