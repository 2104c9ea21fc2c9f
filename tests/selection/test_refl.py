import numpy as np
import pytest
from scipy.stats import chisquare

from fedcohort import make_selector
from fedcohort.selection import Outcome
from fedcohort.testing import check_selector

# Twelve clients, each there for some hours of every day.
ARRIVE = np.array([20, 15, 12, 6, 7, 0, 1, 0, 4, 19, 15, 21])
HOURS = np.array([10, 11, 15, 13, 11, 10, 11, 15, 8, 13, 12, 5])
# Who is there in that hour of the second day and away in the next.
ABOUT_TO_LEAVE = {
    1: [1, 11],
    2: [2, 10],
    5: [0],
    7: [9],
    9: [5],
    11: [6, 8],
    14: [7],
    17: [4],
    18: [3],
}


@pytest.mark.parametrize("spec", ["refl", "refl:period=1", "refl:hold_off=1"])
def test_conformance(spec):
    check_selector(spec)


def test_nothing_is_asked():
    assert make_selector("refl").needs == frozenset()


def test_after_a_day_the_first_are_those_the_authors_code_puts_first():
    """Compared with `resampleClients` of ahmedcs/REFL, core/client_manager.py, avail_priority 1.

    It reads who is about to leave from the traces of the clients above (slots of an hour); what is
    learned here from one day puts the same clients first in all 18 hours of the second and third
    day in which there are any; ABOUT_TO_LEAVE is what it printed for the second.
    """
    selector = make_selector("refl", hold_off=1).fit(clients=12)
    rng = np.random.default_rng(1)
    for hour in range(24):
        selector.select(2, _there(hour), rng=rng)
    for hour in range(24):
        leaving = ABOUT_TO_LEAVE.get(hour, [])
        ids = selector.select(max(1, len(leaving)), _there(hour), rng=rng).ids
        if leaving:
            assert sorted(ids.tolist()) == leaving


def test_without_hours_it_is_how_often_a_client_stayed():
    selector = make_selector("refl", hold_off=1, period=1).fit(clients=3)
    rng = np.random.default_rng(0)
    for available in ([0, 1, 2], [0, 1], [0, 1, 2], [0], [0, 1, 2]):
        selector.select(1, available, rng=rng)
    # Stayed and left: 4 and 0, 2 and 1, 0 and 2.
    expected = [5 / 6, 3 / 5, 1 / 4]
    np.testing.assert_allclose(selector._predicted(np.arange(3)), expected)
    assert selector.select(1, rng=rng).ids.tolist() == [2]


def test_the_hour_outweighs_the_habit_with_every_day():
    selector = make_selector("refl", hold_off=1, period=2).fit(clients=2)
    rng = np.random.default_rng(0)
    for _ in range(3):
        selector.select(1, [0, 1], rng=rng)
        selector.select(1, [0], rng=rng)
    selector.select(1, [0, 1], rng=rng)
    # Client 1 was there in none of three such rounds, and left in all three.
    assert selector._predicted(np.array([1]))[0] == pytest.approx((0 + 1 / 5) / 4)
    assert selector._predicted(np.array([0]))[0] == pytest.approx((3 + 7 / 8) / 4)


def test_who_took_part_rests_while_others_can_be_had():
    selector = make_selector("refl", hold_off=3).fit(clients=9)
    rng = np.random.default_rng(0)
    cohorts = [set(selector.select(3, rng=rng).ids.tolist()) for _ in range(9)]
    for one, two, three in zip(cohorts, cohorts[1:], cohorts[2:], strict=False):
        assert len(one | two | three) == 9
    crowded = make_selector("refl", hold_off=3).fit(clients=4)
    for _ in range(5):
        assert len(set(crowded.select(3, rng=rng).ids.tolist())) == 3


def test_a_drop_out_does_not_undo_what_a_client_did_before():
    selector = make_selector("refl", hold_off=5).fit(clients=20)
    rng = np.random.default_rng(0)
    took_part = selector.select(10, rng=rng).ids
    everyone = selector.select(20, rng=rng).ids
    selector.observe(Outcome(everyone, np.zeros(20, bool)))
    assert not set(selector.select(10, rng=rng).ids.tolist()) & set(took_part.tolist())


def test_who_dropped_out_need_not_rest():
    selector = make_selector("refl", hold_off=5, period=1).fit(clients=4)
    first = selector.select(2, rng=np.random.default_rng(0)).ids
    selector.observe(Outcome(first, np.array([True, False])))
    met = {
        int(c) for seed in range(20) for c in _copy(selector).select(1, rng=_generator(seed)).ids
    }
    assert met == set(range(4)) - {int(first[0])}


def test_equal_clients_are_met_equally_often():
    selector = make_selector("refl", hold_off=1).fit(clients=10)
    rng = np.random.default_rng(0)
    ids = np.concatenate([selector.select(3, rng=rng).ids for _ in range(1000)])
    assert chisquare(np.bincount(ids, minlength=10)).pvalue > 1e-3


def _generator(seed):
    return np.random.default_rng(seed)


def _copy(selector):
    copied = make_selector("refl", hold_off=5, period=1)
    copied.restore(selector.state())
    return copied


def _there(hour):
    return np.flatnonzero((hour - ARRIVE) % 24 < HOURS)
