import itertools

import numpy as np
import pytest
from scipy.stats import chisquare

from fedcohort import make_selector
from fedcohort.selection import Need, Outcome
from fedcohort.selection.divfl import stochastic_greedy
from fedcohort.testing import check_selector


@pytest.mark.parametrize("weights", ["size", "represented"])
@pytest.mark.parametrize("share", [0.01, 0.5])
def test_conformance(weights, share):
    check_selector(lambda: make_selector("divfl", weights=weights, share=share))


def _cost(updates, chosen):
    distances = np.linalg.norm(updates[:, None] - updates[None, list(chosen)], axis=2)
    return distances.min(axis=1).sum()


def _fitted(updates, **parameters):
    selector = make_selector("divfl", **parameters).fit(clients=len(updates))
    selector.tell(Need.UPDATE, range(len(updates)), updates.astype(np.float32))
    return selector


def test_with_every_client_looked_at_each_choice_is_the_greedy_one():
    rng = np.random.default_rng(0)
    updates = rng.normal(size=(9, 5))
    ids = _fitted(updates, share=1.0).select(4, rng=rng).ids.tolist()
    for place in range(4):
        others = set(range(9)) - set(ids[:place])
        best = min(others, key=lambda c: _cost(updates, [*ids[:place], c]))
        assert ids[place] == best


def test_it_is_close_to_the_best_cohort():
    rng = np.random.default_rng(1)
    for _ in range(5):
        updates = rng.normal(size=(9, 4))
        costs = {c: _cost(updates, c) for c in itertools.combinations(range(9), 3)}
        worst, best = max(costs.values()), min(costs.values())
        chosen = _fitted(updates, share=1.0).select(3, rng=rng).ids
        # What greedy guarantees of the gain over the worst; it is usually far better.
        assert worst - _cost(updates, chosen) >= (1 - 1 / np.e) * (worst - best)


def test_a_sample_is_looked_at_for_each_place():
    distances = np.abs(np.arange(10.0)[:, None] - np.arange(10.0))
    rng = np.random.default_rng(2)
    first = [int(stochastic_greedy(distances, 1, 3, rng=rng)[0]) for _ in range(2000)]
    # Of each of the 120 trios the one with the least sum of distances wins, ties at random.
    sums = distances.sum(axis=0)
    expected = np.zeros(10)
    for trio in itertools.combinations(range(10), 3):
        winners = [c for c in trio if sums[c] == min(sums[list(trio)])]
        expected[winners] += 1 / len(winners) / 120
    likely = expected > 0
    counts = np.bincount(first, minlength=10)
    assert counts[~likely].sum() == 0
    assert chisquare(counts[likely], 2000 * expected[likely]).pvalue > 1e-3


def test_three_kinds_of_updates_are_represented_and_weighed_by_their_data():
    rng = np.random.default_rng(3)
    kinds = np.repeat([0, 1, 2], [2, 4, 6])
    updates = np.eye(3)[kinds] * 10 + 0.1 * rng.normal(size=(12, 3))
    selector = make_selector("divfl", share=1.0, weights="represented")
    selector.fit(sizes=np.repeat([6.0, 1.0, 2.0], [2, 4, 6]))
    selector.tell(Need.UPDATE, range(12), updates)
    cohort = selector.select(3, rng=rng)
    weight = dict(zip(kinds[cohort.ids].tolist(), cohort.weights.tolist(), strict=True))
    assert weight == pytest.approx({0: 12 / 28, 1: 4 / 28, 2: 12 / 28})


def test_updates_are_asked_once_and_participants_refresh_theirs():
    selector = make_selector("divfl").fit(clients=4)
    rng = np.random.default_rng(0)
    assert selector.ask(2, rng=rng)[Need.UPDATE].tolist() == [0, 1, 2, 3]
    selector.tell(Need.UPDATE, range(4), np.eye(4, dtype=np.float32))
    assert selector.ask(2, rng=rng) == {}
    new = np.full((1, 4), 7, np.float32)
    selector.observe(Outcome(np.array([2]), np.ones(1, bool), updates=new))
    assert selector.state()["client.update"][2].tolist() == [7, 7, 7, 7]
    selector.join([9])
    assert selector.ask(2, rng=rng)[Need.UPDATE].tolist() == [9]


def test_those_not_available_are_represented_too():
    # Of the three that can be chosen only 7 is near the five that cannot.
    updates = np.array([[0.0, 0], [0, 0], [9, 0], [9, 0], [9, 0], [9, 0], [9, 0], [9, 0.1]])
    selector = _fitted(updates, share=1.0)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        assert selector.select(1, [0, 1, 7], rng=rng).ids.tolist() == [7]


def test_without_any_update_the_choice_is_uniform():
    selector = make_selector("divfl", share=1.0).fit(clients=5)
    rng = np.random.default_rng(0)
    drawn = np.concatenate([selector.select(2, rng=rng).ids for _ in range(1000)])
    assert chisquare(np.bincount(drawn, minlength=5)).pvalue > 1e-3
