import itertools

import numpy as np
import pytest
from scipy.stats import chisquare

from fedcohort import make_selector
from fedcohort.selection import Need


def _paper_kernel(profiles):
    distances = np.linalg.norm(profiles[:, None] - profiles[None], axis=2)
    similarity = 1 - (distances - distances.min()) / (distances.max() - distances.min())
    return similarity.T @ similarity


def _frequencies(selector, k, among, draws, rng):
    subsets = list(itertools.combinations(among, k))
    counts = dict.fromkeys(subsets, 0)
    for _ in range(draws):
        counts[tuple(sorted(selector.select(k, among, rng=rng).ids.tolist()))] += 1
    return subsets, np.array([counts[s] for s in subsets])


@pytest.mark.parametrize("available", [[0, 1, 2, 3, 4, 5], [0, 2, 3, 5]])
def test_cohorts_follow_the_papers_formula(available):
    profiles = np.random.default_rng(0).normal(size=(6, 3))
    kernel = _paper_kernel(profiles)
    selector = make_selector("dp3s").fit(profiles)
    subsets, counts = _frequencies(selector, 2, available, 6000, np.random.default_rng(1))
    weights = np.array([np.linalg.det(kernel[np.ix_(s, s)]) for s in subsets])
    # At 6000 draws a subset that is a quarter too likely is found with power above 0.99.
    assert chisquare(counts, 6000 * weights / weights.sum()).pvalue > 1e-3


def test_after_joins_and_leaves_it_is_the_k_dpp_of_who_is_there():
    profiles = np.random.default_rng(3).normal(size=(9, 4))
    selector = make_selector("dp3s").fit(profiles[:6])
    selector.select(2, rng=np.random.default_rng(0))
    selector.join([6, 7, 8], profiles[6:])
    selector.leave([0, 3])
    there = [1, 2, 4, 5, 6, 7, 8]
    kernel = _paper_kernel(profiles[there])
    _, counts = _frequencies(selector, 2, there, 8000, np.random.default_rng(1))
    places = list(itertools.combinations(range(7), 2))
    weights = np.array([np.linalg.det(kernel[np.ix_(s, s)]) for s in places])
    assert chisquare(counts, 8000 * weights / weights.sum()).pvalue > 1e-3


def test_ten_tight_clusters_are_met_once_each():
    rng = np.random.default_rng(0)
    profiles = np.repeat(rng.normal(size=(10, 20)), 10, axis=0)
    profiles += 0.01 * rng.normal(size=profiles.shape)
    selector = make_selector("dp3s").fit(profiles)
    met = [len(set(selector.select(10, rng=rng).ids // 10)) for _ in range(100)]
    assert np.mean(met) > 9.8


def test_a_large_population_takes_landmarks_and_says_so():
    profiles = np.random.default_rng(0).normal(size=(3001, 8))
    selector = make_selector("dp3s").fit(profiles)
    selector.select(5, rng=np.random.default_rng(0))
    assert selector.describe()["kind"] == "low-rank"
    small = make_selector("dp3s").fit(profiles[:50])
    small.select(5, rng=np.random.default_rng(0))
    assert small.describe()["kind"] == "exact"


def test_larger_cohorts_get_the_landmarks_that_they_need():
    profiles = np.repeat(10 * np.eye(80), 5, axis=0)
    profiles += 0.01 * np.random.default_rng(0).normal(size=profiles.shape)
    selector = make_selector("dp3s", kernel="low-rank").fit(profiles)
    rng = np.random.default_rng(1)
    selector.select(10, rng=rng)
    kinds = np.unique(selector.select(80, rng=rng).ids // 5)
    assert len(kinds) == 80


def test_landmarks_stay_while_the_population_is_alike_and_go_when_it_drifts():
    rng = np.random.default_rng(0)
    selector = make_selector("dp3s", kernel="low-rank", rank=32)
    selector.fit(rng.normal(size=(400, 6)))
    selector.select(5, rng=rng)
    first = selector._landmarks
    selector.join(range(400, 450), rng.normal(size=(50, 6)) * 0.8)
    selector.select(5, rng=rng)
    assert selector._landmarks is first
    selector.join(range(450, 700), 8 + rng.normal(size=(250, 6)))
    selector.select(5, rng=rng)
    assert selector._landmarks is not first


def test_low_rank_joins_match_a_fresh_fit_in_distribution():
    rng = np.random.default_rng(0)
    centres = 4 * rng.normal(size=(6, 5))
    profiles = centres[np.arange(120) % 6] + 0.3 * rng.normal(size=(120, 5))
    grown = make_selector("dp3s", kernel="low-rank", rank=40).fit(profiles[:90])
    grown.select(6, rng=rng)
    grown.join(range(90, 120), profiles[90:])
    exact = make_selector("dp3s", kernel="exact").fit(profiles)
    shares = []
    for selector in (grown, exact):
        draws = np.concatenate([selector.select(6, rng=rng).ids for _ in range(1500)])
        shares.append(np.bincount(draws, minlength=120) / 1500)
    # Both sampled: the expected difference by chance alone is about 0.006 a client.
    assert np.abs(shares[0] - shares[1]).mean() < 0.012


def test_unbiased_weights_give_full_participation_on_average():
    rng = np.random.default_rng(0)
    profiles, sizes = rng.normal(size=(12, 4)), rng.integers(1, 20, 12)
    selector = make_selector("dp3s", weights="unbiased").fit(profiles, sizes=sizes)
    mean = np.zeros(12)
    for _ in range(6000):
        cohort = selector.select(4, rng=rng)
        mean[cohort.ids] += cohort.weights / 6000
    assert np.abs(mean - sizes / sizes.sum()).max() < 0.009


def test_a_new_profile_replaces_the_old_one():
    rng = np.random.default_rng(0)
    profiles = np.repeat(np.eye(3) * 5, 4, axis=0) + 0.01 * rng.normal(size=(12, 3))
    selector = make_selector("dp3s").fit(profiles)
    selector.tell(Need.PROFILE, [0], profiles[[4]])
    assert all(
        not {0} & set(c) or not {4, 5, 6, 7} & set(c)
        for c in (selector.select(3, rng=rng).ids.tolist() for _ in range(100))
    )
