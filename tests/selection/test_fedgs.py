import itertools

import numpy as np
import pytest

from fedcohort import make_selector
from fedcohort.selection import Need, Outcome
from fedcohort.selection.fedgs import farthest_set, graph_distances
from fedcohort.testing import check_selector

FEATURES = np.array(
    [
        [1.2, -1.32, -0.25, 0.42],
        [3.14, 0.11, -0.55, -0.78],
        [2.75, 1.63, 0.27, -1.23],
        [-0.96, 3.6, 0.2, -1.73],
        [-0.08, 0.84, -0.63, -0.49],
        [-0.71, 2.55, -0.06, -0.59],
        [0.41, 0.83, 0.36, -0.26],
        [-0.98, -0.17, 0.71, 0.02],
        [-0.04, -0.3, 0.95, -0.4],
    ]
)
FROM_THE_FIRST = [0.0, 0.049381, 0.052859, 0.068276, 0.074146, 0.069263, 0.057633, 1.0, 0.955038]
CHOSEN = np.array([3.0, 1, 2, 2, 0, 1, 4, 2, 1])


@pytest.mark.parametrize("spec", ["fedgs", "fedgs:features=labels", "fedgs:alpha=0"])
def test_conformance(spec):
    check_selector(spec)


def test_what_it_asks_depends_on_the_features():
    assert make_selector("fedgs").needs == {Need.UPDATE}
    rng = np.random.default_rng(0)
    fitted = make_selector("fedgs").fit(clients=4)
    assert fitted.ask(2, rng=rng)[Need.UPDATE].tolist() == [0, 1, 2, 3]
    labels = make_selector("fedgs", features="labels")
    assert labels.needs == {Need.LABEL_COUNTS}
    assert labels.fit(label_counts=np.eye(4)).ask(2, rng=rng) == {}


def test_distances_are_those_of_the_authors_code():
    """Compared with WwZzz/FedGS, algorithm/update_fedgs.py, run on FEATURES.

    Its graph, edges and Floyd's algorithm gave the same 81 distances to 1.3e-16; one row is here.
    """
    distances = _with_features()._distances()
    np.testing.assert_allclose(distances[0], FROM_THE_FIRST, atol=1e-6)
    np.testing.assert_array_equal(distances, distances.T)


@pytest.mark.parametrize(
    ("available", "expected"),
    [
        ([0, 1, 2, 3, 5, 6, 7, 8], [1, 5, 7, 8]),
        (list(range(9)), [1, 4, 5, 8]),
        ([0, 2, 4, 6, 8], [0, 2, 4, 8]),
    ],
)
def test_cohorts_are_those_of_the_authors_code(available, expected):
    """Compared with `sample` of WwZzz/FedGS, algorithm/update_fedgs.py, for FEATURES and CHOSEN.

    The commercial solver was replaced by one that tries all cohorts; the authors' objective has the
    same coefficients as ours to 4e-18.
    """
    for seed in range(5):
        selector = _with_features(CHOSEN)
        cohort = selector.select(4, available, rng=np.random.default_rng(seed))
        assert sorted(cohort.ids.tolist()) == expected


def test_clients_of_one_class_each_are_all_equally_far_as_in_the_authors_code():
    """No path counts as far as the longest path, here that between twins (see the page)."""
    counts = np.repeat(np.eye(3) * 10, 2, axis=0)
    selector = make_selector("fedgs", features="labels").fit(label_counts=counts)
    np.testing.assert_allclose(selector._distances(), 1 - np.eye(6))


def test_shortest_paths_may_go_by_way_of_others():
    similar = np.array([[0, 0.9, 0.3], [0.9, 0, 0.9], [0.3, 0.9, 0]])
    distances = graph_distances(similar, 0.01, 0.1)
    # Brought to [0, 1], 0.3 / 0.9 = 1/3 has the length exp(−10/9), far more than two of exp(−10).
    assert distances[0, 1] == pytest.approx(distances[0, 2] / 2)
    assert distances[0, 2] == 1.0


def test_graphs_without_any_edge_tell_nothing():
    np.testing.assert_array_equal(graph_distances(np.zeros((4, 4)), 0.01, 0.1), 1 - np.eye(4))


def test_exchanges_find_the_best_set_around_the_first_nearly_always():
    rng = np.random.default_rng(1)
    missed = []
    for _ in range(30):
        mixtures = rng.dirichlet(np.full(5, 0.3), 12)
        pairs = 0.01 * graph_distances(mixtures @ mixtures.T, 0.01, 0.1)
        single = -rng.integers(0, 2, 12) * 2 / 11
        found = farthest_set(pairs, single, 3, 5, rng=rng)
        assert found[0] == 3
        best = max(
            _worth(pairs, single, [3, *others])
            for others in itertools.combinations(np.delete(np.arange(12), 3), 4)
        )
        missed.append(best - _worth(pairs, single, found))
    assert np.sum(np.array(missed) < 1e-12) >= 27
    assert max(missed) < 0.002


def test_participation_is_even_even_if_availability_is_not():
    rng = np.random.default_rng(0)
    selector = make_selector("fedgs").fit(clients=40)
    selector.tell(Need.UPDATE, range(40), rng.normal(size=(40, 6)))
    there = np.where(np.arange(40) < 20, 0.9, 0.4)
    times = np.zeros(40)
    for _ in range(200):
        available = np.flatnonzero(rng.random(40) < there)
        times[selector.select(5, available, rng=rng).ids] += 1
    # Uniform sampling of who is there would choose the first twenty 2.25 times as often.
    assert times[:20].mean() / times[20:].mean() < 1.1


def test_without_alpha_it_is_whoever_was_chosen_least():
    selector = _with_features(CHOSEN, alpha=0)
    ids = selector.select(2, rng=np.random.default_rng(0)).ids
    assert 4 in ids
    assert CHOSEN[ids].tolist() == [0, 1]


def test_what_is_maximised(monkeypatch):
    seen = {}

    def noted(pairs, single, first, k, *, rng):
        seen.update(pairs=pairs, single=single, first=first)
        return farthest_set(pairs, single, first, k, rng=rng)

    monkeypatch.setattr("fedcohort.selection.fedgs.farthest_set", noted)
    _with_features(CHOSEN).select(3, [0, 1, 2, 3, 7], rng=np.random.default_rng(0))
    # Of three pairs each counts a third of α = 0.1; v̄ = 16/9, and 3 of 5 are chosen.
    np.testing.assert_allclose(seen["pairs"][0, 4], 0.1 / 3)
    np.testing.assert_allclose(seen["pairs"][0, 1], 0.1 / 3 * FROM_THE_FIRST[1], atol=1e-7)
    expected = -(2 * (np.array([3, 1, 2, 2, 2]) - 16 / 9 - 3 / 5) + 1) / 8
    np.testing.assert_allclose(seen["single"], expected)
    assert seen["first"] == 1


@pytest.mark.parametrize("alpha", [0.0, 1e12])
def test_the_search_ends_for_any_alpha(alpha):
    rng = np.random.default_rng(0)
    selector = make_selector("fedgs", alpha=alpha).fit(clients=60)
    selector.tell(Need.UPDATE, range(60), rng.normal(size=(60, 3)))
    for _ in range(30):
        assert len(np.unique(selector.select(9, rng=rng).ids)) == 9


def test_a_newcomer_counts_as_average_and_a_drop_out_as_not_chosen():
    selector = _with_features(CHOSEN)
    selector.join([20])
    assert selector._roster["chosen"][-1] == pytest.approx(CHOSEN.mean())
    selector.observe(Outcome(np.array([0, 4, 5]), np.array([True, False, False])))
    assert selector._roster["chosen"][[0, 4, 5]].tolist() == [3, 0, 0]


def test_updates_of_later_rounds_do_not_change_the_graph():
    selector = _with_features()
    before = selector._distances().copy()
    updates = np.ones((2, 4), np.float32)
    selector.observe(Outcome(np.array([0, 1]), np.ones(2, bool), updates=updates))
    np.testing.assert_array_equal(selector._distances(), before)


def _worth(pairs, single, chosen):
    return pairs[np.ix_(chosen, chosen)].sum() / 2 + single[list(chosen)].sum()


def _with_features(chosen=None, **parameters):
    selector = make_selector("fedgs", **parameters).fit(clients=9)
    selector.tell(Need.UPDATE, range(9), FEATURES)
    selector._roster.define("chosen", 0.0)
    if chosen is not None:
        selector._roster.put("chosen", np.arange(9), chosen)
    return selector
