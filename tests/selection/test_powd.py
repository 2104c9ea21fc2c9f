import numpy as np
import pytest
from scipy.stats import chisquare

from fedcohort import make_selector
from fedcohort.selection import Need, Outcome
from fedcohort.testing import check_selector

LOSSES = np.array([3.0, 1.0, 4.0, 1.5, 9.0, 2.6])


@pytest.mark.parametrize("variant", ["pow-d", "cpow-d", "rpow-d"])
@pytest.mark.parametrize("d", [None, 1, 9])
def test_conformance(variant, d):
    check_selector(lambda: make_selector("pow-d", variant=variant, d=d))


@pytest.mark.parametrize("variant", ["pow-d", "cpow-d"])
def test_of_the_candidates_asked_the_highest_losses_train_with_equal_weights(variant):
    selector = make_selector("pow-d", d=4, variant=variant).fit(sizes=[1, 2, 3, 4, 5, 6])
    rng = np.random.default_rng(0)
    for _ in range(30):
        asked = selector.ask(2, rng=rng)[Need.LOSS]
        assert len(set(asked.tolist())) == 4
        selector.tell(Need.LOSS, asked, LOSSES[asked])
        cohort = selector.select(2, rng=rng)
        assert cohort.ids.tolist() == asked[np.argsort(-LOSSES[asked])[:2]].tolist()
        assert cohort.weights.tolist() == [0.5, 0.5]


def test_candidates_are_drawn_by_size_without_replacement():
    sizes = np.array([10.0, 20.0, 30.0, 40.0])
    selector = make_selector("pow-d", d=2).fit(sizes=sizes)
    rng = np.random.default_rng(1)
    shares = sizes / sizes.sum()
    pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    chances = [
        shares[a] * shares[b] * (1 / (1 - shares[a]) + 1 / (1 - shares[b])) for a, b in pairs
    ]
    counts = dict.fromkeys(pairs, 0)
    for _ in range(4000):
        counts[tuple(sorted(selector.ask(1, rng=rng)[Need.LOSS].tolist()))] += 1
    assert chisquare(list(counts.values()), 4000 * np.array(chances)).pvalue > 1e-3


def test_twice_the_cohort_is_asked_by_default_and_never_more_than_there_are():
    selector = make_selector("pow-d").fit(clients=7)
    rng = np.random.default_rng(0)
    assert len(selector.ask(3, rng=rng)[Need.LOSS]) == 6
    assert len(selector.ask(5, rng=rng)[Need.LOSS]) == 7
    assert len(selector.ask(2, [1, 2, 3], rng=rng)[Need.LOSS]) == 3


def test_rpow_d_asks_nothing_and_meets_the_never_trained_first():
    selector = make_selector("pow-d", variant="rpow-d", d=6).fit(clients=6)
    rng = np.random.default_rng(0)
    met = set()
    for _ in range(3):
        assert selector.ask(2, rng=rng) == {}
        ids = selector.select(2, rng=rng).ids
        met |= set(ids.tolist())
        selector.observe(Outcome(ids, np.ones(2, bool), losses=LOSSES[ids]))
    assert met == set(range(6))
    assert set(selector.select(2, rng=rng).ids.tolist()) == {4, 2}


def test_candidates_that_became_unavailable_are_replaced():
    selector = make_selector("pow-d", d=3).fit(clients=8)
    rng = np.random.default_rng(0)
    asked = selector.ask(3, rng=rng)[Need.LOSS]
    selector.tell(Need.LOSS, asked, np.ones(3))
    there = np.setdiff1d(np.arange(8), asked[:1])
    assert set(asked[1:].tolist()) <= set(selector.select(3, there, rng=rng).ids.tolist())


def test_a_draw_is_used_once():
    selector = make_selector("pow-d", d=1).fit(clients=50)
    rng = np.random.default_rng(0)
    asked = selector.ask(1, rng=rng)[Need.LOSS]
    assert selector.select(1, rng=rng).ids.tolist() == asked.tolist()
    later = {int(selector.select(1, rng=rng).ids[0]) for _ in range(20)}
    assert len(later) > 5


@pytest.mark.parametrize("variant", ["pow-d", "cpow-d", "rpow-d"])
def test_losses_seen_in_training_are_for_the_variant_that_asks_nothing(variant):
    selector = make_selector("pow-d", variant=variant, d=3).fit(clients=3)
    selector.tell(Need.LOSS, [0, 1, 2], [0.1, 0.2, 0.3])
    selector.observe(Outcome(np.array([0]), np.array([True]), losses=np.array([9.0])))
    # Nobody answers the next question.
    selector.ask(1, rng=np.random.default_rng(0))
    chosen = selector.select(1, rng=np.random.default_rng(1)).ids
    assert chosen.tolist() == ([0] if variant == "rpow-d" else [2])
