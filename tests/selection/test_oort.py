import numpy as np
import pytest
from scipy.stats import chisquare

from fedcohort import make_selector
from fedcohort.selection import Need, Outcome
from fedcohort.testing import check_selector


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"exploration": 0.0, "exploration_min": 0.0},
        {"exploration": 1.0, "exploration_min": 1.0},
        {"pacer_window": 1, "pacer_step": 0.5},
        {"penalty": 0.0, "cutoff": 0.0, "clip": 1.0},
    ],
)
def test_conformance(parameters):
    check_selector(lambda: make_selector("oort", **parameters))


def _observe(selector, ids, losses, durations=None):
    outcome = Outcome(
        np.asarray(ids),
        np.ones(len(ids), bool),
        losses=np.asarray(losses, float),
        durations=None if durations is None else np.asarray(durations, float),
    )
    selector.observe(outcome)


def _explored(losses, durations=None, sizes=None, **parameters):
    """Return a selector that has met everyone in round 1."""
    count = len(losses)
    selector = make_selector("oort", **{"clip": 1.0, "cutoff": 0.0, **parameters})
    selector.fit(sizes=sizes, clients=count)
    selector.select(count, rng=np.random.default_rng(0))
    _observe(selector, range(count), losses, durations)
    return selector


def _first_choices(selector, draws, seed=1):
    """Return how often each client is the one chosen in the round that follows."""
    state = selector.state()
    rng = np.random.default_rng(seed)
    counts = np.zeros(len(selector.clients))
    for _ in range(draws):
        selector.restore(state)
        counts[selector.select(1, rng=rng).ids] += 1
    return counts


def test_explored_clients_are_drawn_by_utility():
    sizes, losses = np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 2.0, 1.0, 0.25])
    counts = _first_choices(_explored(losses, sizes=sizes), 4000)
    # From 0.999 times the least, 1, to the largest, 4.
    utilities = (sizes * losses - 0.999) / 3.001 + np.sqrt(0.1 * np.log(2))
    assert chisquare(counts, 4000 * utilities / utilities.sum()).pvalue > 1e-3


def test_slow_clients_are_penalised_by_the_square_of_their_slowness():
    # The 0.5 quantile of the durations 2, 2, 2, 4, 8 is T = 2.
    losses = np.full(5, 3.0)
    counts = _first_choices(_explored(losses, [2, 2, 2, 4, 8], preferred=0.5), 4000)
    weights = np.array([1, 1, 1, 1 / 4, 1 / 16])
    assert chisquare(counts, 4000 * weights / weights.sum()).pvalue > 1e-3


def test_without_durations_all_are_equally_fast():
    counts = _first_choices(_explored(np.full(4, 3.0)), 2000)
    assert chisquare(counts).pvalue > 1e-3


def test_below_the_cut_off_nobody_is_drawn():
    # Utilities are 1, .956, .933, 0 and .263 for staleness: 95 % of the best is 1.200.
    counts = _first_choices(_explored([10.0, 9.6, 9.4, 1.0], cutoff=0.95), 500)
    assert (counts[:2] > 0).all()
    assert (counts[2:] == 0).all()


def test_an_outlier_is_capped():
    losses = np.array([1.0, 1, 1, 1, 1000])
    counts = _first_choices(_explored(losses, clip=0.5), 2000)
    assert chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(("lead", "winner"), [(0.74, 0), (0.76, 1)])
def test_a_client_not_seen_for_long_gains(lead, winner):
    # Last seen in rounds 1 and 20, in round 21 they gain √(.1 ln 21) = .552 and √(.1 ln 21 / 20)
    # = .123: client 1 is ahead if its loss leads by more than .429 of the largest one.
    # Cut-off 1 leaves the best only.
    selector = _explored([1.0, 1.0 + lead, 0.0], cutoff=1.0)
    rng = np.random.default_rng(0)
    for _ in range(19):
        selector.select(1, rng=rng)
        _observe(selector, [1], [1.0 + lead])
    assert selector.select(1, rng=rng).ids.tolist() == [winner]


def test_exploration_fades_from_nine_tenths_to_three():
    selector = make_selector("oort", exploration_decay=0.9).fit(clients=2000)
    met, new = set(), []
    rng = np.random.default_rng(0)
    for _ in range(20):
        ids = selector.select(20, rng=rng).ids
        new.append(len(set(ids.tolist()) - met))
        met |= set(ids.tolist())
        _observe(selector, ids, np.ones(20))
    expected = [20] + [round(20 * max(0.3, 0.9 * 0.9**t)) for t in range(1, 20)]
    assert new == expected
    assert expected[-1] == 6


def test_when_all_are_explored_all_places_are_by_utility():
    selector = _explored(np.ones(6))
    assert len(set(selector.select(6, rng=np.random.default_rng(0)).ids.tolist())) == 6


def test_who_dropped_out_is_still_unexplored():
    selector = make_selector("oort", exploration_min=0.0, exploration=0.0).fit(clients=3)
    rng = np.random.default_rng(0)
    selector.select(3, rng=rng)
    losses = np.array([1.0, np.nan, 1.0])
    selector.observe(Outcome(np.arange(3), np.array([True, False, True]), losses=losses))
    for _ in range(20):
        assert 1 not in selector.select(2, rng=rng).ids


def test_the_unexplored_are_drawn_by_size_and_less_if_known_to_be_slow():
    selector = make_selector("oort", preferred=0.5).fit(sizes=[10.0, 10.0, 20.0, 40.0])
    selector.tell(Need.DURATION, [0, 1, 2], [1.0, 2.0, 4.0])
    counts = _first_choices(selector, 3000)
    # T = 2: client 2 takes twice as long, so a quarter of its 20 samples counts.
    assert chisquare(counts, 3000 * np.array([10, 10, 5, 40]) / 65).pvalue > 1e-3


def test_only_five_times_as_many_as_wanted_are_explored():
    selector = make_selector("oort").fit(sizes=[*[9.0] * 4, *[5.0] * 3, *[1.0] * 20])
    counts = _first_choices(selector, 600)
    # The four largest, and one of the next three by lot.
    assert (counts[:7] > 0).all()
    assert (counts[7:] == 0).all()
    assert counts[:4].sum() / 600 == pytest.approx(36 / 41, abs=0.05)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([2, 2, 1, 1], 0.4),  # 4 in the first window, 2 in the second: one step
        ([1, 1, 2, 2], 0.3),  # utility still grows
        ([2, 2, 1, 1, 0.5, 0.5], 0.5),  # and again two rounds later
    ],
)
def test_the_pacer_allows_slower_clients_when_utility_falls(losses, expected):
    selector = make_selector("oort", pacer_window=2, pacer_step=0.1).fit(clients=1)
    rng = np.random.default_rng(0)
    for loss in losses:
        selector.select(1, rng=rng)
        _observe(selector, [0], [loss])
    found = selector.describe()["preferred_duration_quantile"]
    assert found == pytest.approx(expected)


def test_losses_and_durations_of_any_size_leave_utilities_that_compare():
    selector = _explored([1e308, 5.0, -1e308, 0.0], [-1e18, 1.0, 0.0, 1e300], sizes=[1e15, 1, 2, 3])
    for seed in range(20):
        assert len(set(selector.select(2, rng=np.random.default_rng(seed)).ids.tolist())) == 2
    half = _explored([1.0, 2.0, 3.0], [-5.0, -1.0, 4.0], penalty=0.5)
    assert len(half.select(1, rng=np.random.default_rng(0))) == 1
