import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedcohort import make_selector
from fedcohort.selection import Need
from fedcohort.selection.clustered import sampling_distributions


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(1, 500), min_size=1, max_size=25), st.data(), st.integers(0, 2**32 - 1))
def test_every_distribution_holds_its_share_and_every_client_all_of_its_own(sizes, data, seed):
    rng = np.random.default_rng(seed)
    k = data.draw(st.integers(1, len(sizes)))
    points = rng.normal(size=(len(sizes), 3))
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    shares = np.array(sizes) / sum(sizes)
    rows = sampling_distributions(distances, shares, k, rng=rng)
    assert rows.shape == (k, len(sizes))
    assert (rows >= 0).all()
    assert np.allclose(rows.sum(axis=1), 1, atol=1e-6)
    assert np.allclose(rows.sum(axis=0), k * shares, atol=1e-6)


def test_known_clusters_are_sampled_once_each():
    selector, kinds = _with_known_clusters()
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert sorted(kinds[selector.select(4, rng=rng).ids]) == [0, 1, 2, 3]


def test_cold_start_may_draw_a_client_twice_and_every_draw_weighs_the_same():
    selector = make_selector("clustered").fit(sizes=[50, 1, 1, 1, 1])
    cohort = selector.select(3, rng=np.random.default_rng(0))
    assert (cohort.ids == 0).sum() >= 2
    assert cohort.weights.tolist() == [1 / 3] * 3


def test_the_average_is_unbiased():
    sizes = np.array([10, 30, 5, 55, 20, 40])
    selector = make_selector("clustered").fit(sizes=sizes)
    rng = np.random.default_rng(2)
    selector.tell(Need.UPDATE, range(6), rng.normal(size=(6, 4)))
    counts = np.zeros(6)
    for _ in range(3000):
        counts += np.bincount(selector.select(3, rng=rng).ids, minlength=6)
    # Draws within a cohort are dependent, which only narrows the counts: the test is conservative.
    assert chisquare(counts, 9000 * sizes / sizes.sum()).pvalue > 1e-3


def test_angles_ignore_length_and_l2_does_not():
    updates = np.array([[1.0, 0.0], [9.0, 0.1], [0.0, 1.0], [0.1, 9.0]], np.float32)
    paired = {}
    for distance in ("angle", "l2"):
        selector = make_selector("clustered", distance=distance).fit(clients=4)
        selector.tell(Need.UPDATE, range(4), updates)
        rng = np.random.default_rng(0)
        paired[distance] = {tuple(sorted(selector.select(2, rng=rng).ids)) for _ in range(60)}
    assert (0, 1) not in paired["angle"]
    assert (0, 2) not in paired["l2"]


@pytest.mark.parametrize(
    ("distance", "known_two", "known_and_not"), [("l2", 4 + 9, 4 + 1), ("l1", 2 + 3, 2 + 1)]
)
def test_lengths_are_the_authors(distance, known_two, known_and_not):
    selector = make_selector("clustered", distance=distance).fit(clients=4)
    assert (selector._distances(np.arange(4)) == 0).all()
    selector.tell(Need.UPDATE, [0, 2], np.array([[2.0, 1.0], [0.0, 4.0]], np.float32))
    # L2 is squared, and clients 1 and 3, which have not trained, are at 0.
    expected = np.zeros((4, 4))
    expected[0, 2] = known_two
    expected[0, [1, 3]] = known_and_not
    expected[2, [1, 3]] = 16 if distance == "l2" else 4
    assert np.allclose(selector._distances(np.arange(4)), expected + expected.T)
    assert selector.revision == 2
    assert make_selector("clustered").revision == 1


@pytest.mark.parametrize("known", [0, 8])
def test_unknown_clients_are_at_distance_zero(known):
    selector = make_selector("clustered").fit(clients=8)
    if known:
        selector.tell(Need.UPDATE, range(known), np.eye(8, dtype=np.float32))
    distances = selector._distances(np.arange(8))
    expected = np.pi / 2 * (1 - np.eye(8)) if known else np.zeros((8, 8))
    assert np.allclose(distances, expected)


def _with_known_clusters():
    kinds = np.arange(20) % 4
    rng = np.random.default_rng(1)
    updates = np.eye(4)[kinds] * rng.uniform(1, 5, (20, 1)) + 0.01 * rng.normal(size=(20, 4))
    selector = make_selector("clustered").fit(clients=20)
    selector.tell(Need.UPDATE, range(20), updates.astype(np.float32))
    return selector, kinds
