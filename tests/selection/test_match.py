import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcohort import make_selector
from fedcohort.metrics import gemd, participation_variation
from fedcohort.selection import Need, Outcome
from fedcohort.selection.match import _matched_weights, _swap
from fedcohort.testing import check_selector

MODES = [
    {"evenness": "strict"},
    {"evenness": "free"},
    {"weights": "matched"},
    {"search": "greedy"},
    {"search": "best-of-100"},
    {"whiten": False},
    {"evenness": "strict", "weights": "matched"},
]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_every_mode_conforms(mode):
    check_selector(lambda: make_selector("match", **mode))


def _two_class_clients(clients=100, classes=10, samples=500, noise=5.0, seed=0):
    """Clients with two classes each, half and half, and profiles linear in their mixture."""
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(classes) for _ in range(2 * clients // classes)])
    pairs = order.reshape(clients, 2)
    counts = np.zeros((clients, classes))
    for row, pair in zip(counts, pairs, strict=True):
        row[pair] += samples / 2
    means = rng.normal(size=(classes, 50))
    profiles = counts / samples @ means
    return profiles + noise / np.sqrt(samples) * rng.normal(size=profiles.shape) * 0.1, counts


def test_two_classes_a_client_are_matched_where_a_dpp_is_defeated():
    profiles, counts = _two_class_clients()
    scores = {}
    for name in ("match", "dp3s", "fedavg"):
        selector = make_selector(name).fit(profiles)
        rng = np.random.default_rng(0)
        scores[name] = np.mean([gemd(counts, selector.select(10, rng=rng).ids) for _ in range(50)])
    assert scores["match"] < 0.03
    assert scores["dp3s"] > 0.2
    assert scores["fedavg"] > 0.3


@pytest.mark.parametrize(("clients", "k"), [(10, 5), (20, 10), (30, 15), (30, 20)])
def test_half_of_a_small_federation_is_matched_too(clients, k):
    # With all directions whitened, all cohorts of so many would be equally near.
    profiles, counts = _two_class_clients(clients)
    scores = {}
    for name in ("match", "fedavg"):
        selector = make_selector(name).fit(profiles)
        rng = np.random.default_rng(0)
        scores[name] = np.mean([gemd(counts, selector.select(k, rng=rng).ids) for _ in range(50)])
    assert scores["match"] < 0.08 < 0.15 < scores["fedavg"]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(3, 12), st.data())
def test_no_single_exchange_would_help_noticeably(seed, m, data):
    rng = np.random.default_rng(seed)
    k = data.draw(st.integers(1, m))
    points, sizes = rng.normal(size=(m, 3)), rng.integers(1, 9, m).astype(float)

    def distance(cohort):
        return np.sum((points[cohort] * sizes[cohort, None]).sum(0) ** 2) / sizes[cohort].sum() ** 2

    chosen = _swap(points * sizes[:, None], sizes, k, 0, rng)
    assert len(set(chosen.tolist())) == k
    reached = distance(chosen)
    for place, new in itertools.product(range(k), set(range(m)) - set(chosen.tolist())):
        other = chosen.copy()
        other[place] = new
        assert distance(other) > reached * 0.98, "a pass ends when it gains less than 1 %"


def test_sizes_count():
    """Two large clients of kind 0 weigh as much as six small ones of kind 1."""
    profiles = np.array([[1.0]] * 4 + [[-1.0]] * 12)
    sizes = np.array([30.0] * 4 + [10.0] * 12)
    selector = make_selector("match", evenness="free").fit(profiles, sizes=sizes)
    for seed in range(20):
        ids = selector.select(8, rng=np.random.default_rng(seed)).ids
        assert (ids < 4).sum() == 2


def test_small_noisy_clients_are_matched_better_with_the_ridge_than_without():
    profiles, counts = _two_class_clients(samples=16, noise=12.0)
    scores = []
    for ridge in (3.0, 0.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fedcohort.selection.coordinates._RIDGE", ridge)
            selector = make_selector("match").fit(profiles)
            rng = np.random.default_rng(0)
            found = [gemd(counts, selector.select(10, rng=rng).ids) for _ in range(60)]
            scores.append(np.mean(found))
    assert scores[0] < 0.8 * scores[1]


def _counts_after(selector, rounds, clients, seed=0):
    rng = np.random.default_rng(seed)
    counts = np.zeros(clients)
    for _ in range(rounds):
        counts[selector.select(10, rng=rng).ids] += 1
    return counts


def test_participation_is_as_even_as_uniform_sampling_and_strictly_even_on_request():
    profiles, _ = _two_class_clients()
    uniform = participation_variation(
        _counts_after(make_selector("fedavg").fit(profiles), 100, 100)
    )
    usual = _counts_after(make_selector("match").fit(profiles), 100, 100)
    strict = make_selector("match", evenness="strict").fit(profiles)
    assert participation_variation(usual) < 1.15 * uniform
    for rounds in (1, 5, 3):
        _counts_after(strict, rounds, 100)
    # 9 rounds of 10: 90 of 100 clients once, none twice.
    rounds = strict.state()["client.had"]
    assert sorted(rounds.tolist()) == [0] * 10 + [1] * 90


def test_a_client_that_failed_gets_its_turn_back():
    profiles, _ = _two_class_clients(clients=20)
    selector = make_selector("match", evenness="strict").fit(profiles)
    first = selector.select(10, rng=np.random.default_rng(0)).ids
    trained = np.ones(10, bool)
    trained[3] = False
    selector.observe(Outcome(first, trained))
    second = selector.select(10, rng=np.random.default_rng(1)).ids
    assert not set(first[trained]) & set(second)
    third = selector.select(1, rng=np.random.default_rng(2)).ids
    assert first[3] in {*second, *third}


def test_matched_weights_come_closer_stay_positive_and_are_capped():
    rng = np.random.default_rng(0)
    for _ in range(20):
        points, sizes = rng.normal(size=(8, 4)), rng.integers(5, 50, 8).astype(float)
        share, noise = sizes / sizes.sum(), 0.5 / sizes
        weights = _matched_weights(points, share, noise)
        assert weights.sum() == pytest.approx(1)
        assert (weights >= 0).all()
        assert (weights <= 2.02 * share).all()
        assert np.linalg.norm(weights @ points) < np.linalg.norm(share @ points)


def test_matched_weights_are_the_constrained_least_squares_where_no_bound_is_met():
    rng = np.random.default_rng(1)
    points, share = 0.05 * rng.normal(size=(6, 3)) + 0.1, np.full(6, 1 / 6)
    noise = np.linspace(0.2, 1.0, 6)
    weights = _matched_weights(points, share, noise)
    # Lagrange: the gradients of the objective are the same for all clients.
    gradient = points @ (weights @ points) + noise * (weights - share)
    assert gradient == pytest.approx(np.full(6, gradient.mean()), abs=1e-9)
    assert weights.sum() == pytest.approx(1)
    assert np.abs(weights - share).max() > 1e-4


def test_noise_keeps_weights_at_the_shares():
    points = np.random.default_rng(2).normal(size=(5, 3))
    share = np.array([0.1, 0.2, 0.3, 0.2, 0.2])
    assert _matched_weights(points, share, np.full(5, 1e9)) == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize("noise", [np.inf, np.nan, 1e300, 0.0])
def test_noise_of_any_size_leaves_weights_finite(noise):
    points = np.random.default_rng(2).normal(size=(5, 3))
    weights = _matched_weights(points, np.full(5, 0.2), np.full(5, noise))
    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()


def _unequal_clients(clients=60, kinds=6, seed=0):
    """Clients of one kind each and of very unequal sizes: profiles, sizes and label counts."""
    rng = np.random.default_rng(seed)
    sizes = np.ceil(rng.lognormal(4, 1, clients))
    kind = np.arange(clients) % kinds
    profiles = (
        np.eye(kinds)[kind] + 0.3 * rng.normal(size=(clients, kinds)) / np.sqrt(sizes)[:, None]
    )
    return profiles, sizes, np.eye(kinds)[kind] * sizes[:, None]


def _says_and_distance(evenness, rounds=150):
    """Return the spread of what a sample had, and the mean distance of cohorts' mixtures."""
    profiles, sizes, counts = _unequal_clients()
    selector = make_selector("match", evenness=evenness).fit(profiles, sizes=sizes)
    rng = np.random.default_rng(0)
    said, apart = np.zeros(len(sizes)), []
    for _ in range(rounds):
        cohort = selector.select(10, rng=rng)
        said[cohort.ids] += cohort.weights
        mixture = cohort.weights @ (counts[cohort.ids] / sizes[cohort.ids, None])
        apart.append(np.abs(mixture - counts.sum(0) / counts.sum()).sum())
    share = sizes / sizes.sum()
    per_sample = said / said.sum() / share
    return np.sqrt(share @ (per_sample - 1) ** 2), np.mean(apart)


def test_samples_have_an_even_say_and_cohorts_are_closer_than_with_even_rounds():
    even_say, near = _says_and_distance("samples")
    even_rounds, far = _says_and_distance("clients")
    free, nearest = _says_and_distance("free")
    assert even_say < 0.5 * min(even_rounds, free)
    assert nearest <= near < 0.8 * far


def test_with_equal_clients_an_even_say_is_even_rounds():
    profiles, _ = _two_class_clients()
    by_samples = make_selector("match", evenness="samples", weights="size").fit(profiles)
    by_clients = make_selector("match", evenness="clients", weights="size").fit(profiles)
    for seed in range(40):
        rng = [np.random.default_rng(seed) for _ in range(2)]
        one, two = by_samples.select(10, rng=rng[0]), by_clients.select(10, rng=rng[1])
        assert one.ids.tolist() == two.ids.tolist()


def test_newcomers_are_owed_nothing_for_the_rounds_before_they_came():
    profiles, sizes, _ = _unequal_clients()
    selector = make_selector("match").fit(profiles[:50], sizes=sizes[:50])
    rng = np.random.default_rng(0)
    for _ in range(100):
        selector.select(10, rng=rng)
    selector.join(np.arange(50, 60), profiles[50:], sizes=sizes[50:])
    chosen = np.concatenate([selector.select(10, rng=rng).ids for _ in range(20)])
    # A sixth of the clients: 33 of 200 places if nobody were preferred.
    assert 10 < (chosen >= 50).sum() < 70


def test_clients_that_are_away_do_not_hold_the_others_back():
    profiles, sizes, counts = _unequal_clients(clients=120)
    everyone = counts.sum(0) / counts.sum()
    apart = {}
    for name in ("match", "fedavg"):
        selector = make_selector(name).fit(profiles, sizes=sizes)
        rng, found = np.random.default_rng(0), []
        for _ in range(150):
            cohort = selector.select(10, np.arange(60), rng=rng)
            mixture = cohort.weights @ (counts[cohort.ids] / sizes[cohort.ids, None])
            found.append(np.abs(mixture - everyone).sum())
        apart[name] = np.mean(found[-60:])
    # Were dues counted among all 120, the sixty would be ahead of them soon: 0.75 of fedavg's.
    assert apart["match"] < 0.35 * apart["fedavg"]


@pytest.mark.parametrize("evenness", ["samples", "clients"])
def test_clients_that_come_back_do_not_fill_the_cohorts(evenness):
    profiles, sizes, counts = _unequal_clients()
    selector = make_selector("match", evenness=evenness).fit(profiles, sizes=sizes)
    rng = np.random.default_rng(0)
    # Kinds 3, 4 and 5 are away for as long as catching up would take.
    there = np.flatnonzero(counts[:, :3].any(axis=1))
    for _ in range(60):
        selector.select(10, there, rng=rng)
    cohorts = [selector.select(10, rng=rng).ids for _ in range(30)]
    back = 1 - np.isin(np.concatenate(cohorts), there).mean()
    assert 0.4 < back < 0.6
    # Those who were behind would be half of everyone, and miss three of six kinds.
    assert np.mean([gemd(counts, ids) for ids in cohorts]) < 0.3


@pytest.mark.parametrize("evenness", ["samples", "clients"])
@pytest.mark.parametrize("fail", ["rounds", "clients"])
def test_clients_that_come_back_are_not_passed_over_where_others_failed(evenness, fail):
    selector = make_selector("match", evenness=evenness)
    selector.fit(np.random.default_rng(0).normal(size=(40, 16)))
    rng, back, chosen = np.random.default_rng(0), 0, 0
    for round_ in range(600):
        # Half of the clients are away in every second block of 50 rounds.
        everyone = round_ % 100 < 50
        cohort = selector.select(5, None if everyone else np.arange(20), rng=rng)
        trained = rng.random(5 if fail == "clients" else 1) < 0.5
        selector.observe(Outcome(cohort.ids, np.broadcast_to(trained, 5)))
        if everyone:
            back, chosen = back + (cohort.ids >= 20).sum(), chosen + 5
    # Four standard deviations of drawing at random. If failed rounds counted for those who are away
    # it would be a tenth.
    assert abs(back / chosen - 0.5) < 4 * 0.5 / np.sqrt(chosen)


def test_in_strict_turns_newcomers_are_owed_nothing_for_those_who_are_away():
    profiles = np.random.default_rng(0).normal(size=(11, 6))
    selector = make_selector("match", evenness="strict").fit(profiles[:10])
    rng = np.random.default_rng(0)
    for _ in range(30):
        selector.select(2, np.arange(9), rng=rng)
    selector.join([10], profiles[10:])
    there = np.delete(np.arange(11), 9)
    chosen = [selector.select(2, there, rng=rng).ids for _ in range(30)]
    assert np.sum(np.array(chosen) == 10) in (5, 6, 7)


def test_in_strict_turns_newcomers_are_as_far_as_the_last():
    profiles, sizes, _ = _unequal_clients()
    selector = make_selector("match", evenness="strict").fit(profiles[:50], sizes=sizes[:50])
    rng = np.random.default_rng(0)
    for _ in range(25):
        selector.select(10, rng=rng)
    selector.join(np.arange(50, 60), profiles[50:], sizes=sizes[50:])
    for _ in range(6):
        chosen = selector.select(10, rng=rng).ids
        selector.observe(Outcome(chosen, np.ones(10, bool)))
    # Everyone once: 60 clients in six rounds.
    assert selector.state()["client.had"].tolist() == [6.0] * 60


def test_the_say_of_those_who_fail_goes_to_those_who_train():
    profiles, sizes, _ = _unequal_clients()
    selector = make_selector("match").fit(profiles, sizes=sizes)
    cohort = selector.select(10, rng=np.random.default_rng(0))
    trained = np.arange(10) % 3 > 0
    selector.observe(Outcome(cohort.ids, trained))
    had = selector.state()["client.had"]
    kept = cohort.weights * trained
    assert had[cohort.ids] == pytest.approx(10 * kept / kept.sum())
    assert had.sum() == pytest.approx(10)


@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
def test_scale_and_shift_do_not_matter(scale):
    profiles, _ = _two_class_clients()
    plain = make_selector("match").fit(profiles)
    other = make_selector("match").fit((profiles + 3.0) * scale)
    for seed in range(5):
        one, two = (s.select(10, rng=np.random.default_rng(seed)).ids for s in (plain, other))
        assert set(one) == set(two)


def test_equal_profiles_are_drawn_uniformly():
    selector = make_selector("match", evenness="free").fit(np.ones((6, 3)))
    rng = np.random.default_rng(0)
    counts = np.bincount(
        np.concatenate([selector.select(2, rng=rng).ids for _ in range(3000)]), minlength=6
    )
    # 1000 ± 26 each: ±130 is five sigma.
    assert (abs(counts - 1000) < 130).all()


def test_large_cohorts_are_matched_too():
    profiles, counts = _two_class_clients()
    selector = make_selector("match").fit(profiles)
    rng = np.random.default_rng(0)
    found = [gemd(counts, selector.select(50, rng=rng).ids) for _ in range(30)]
    # Without a ridge for large cohorts it is about .06.
    assert np.mean(found) < 0.02


def test_a_large_population_is_matched_from_a_sample_of_candidates():
    profiles, counts = _two_class_clients(clients=20_000)
    selector = make_selector("match").fit(profiles.astype(np.float32))
    rng = np.random.default_rng(0)
    found = [gemd(counts, selector.select(10, rng=rng).ids) for _ in range(30)]
    assert np.mean(found) < 0.03


def test_newcomers_are_placed_without_a_new_fit_and_many_of_them_cause_one():
    profiles, _ = _two_class_clients()
    selector = make_selector("match").fit(profiles[:60])
    selector.select(10, rng=np.random.default_rng(0))
    basis = selector._basis
    selector.join(range(60, 80), profiles[60:80])
    selector.select(10, rng=np.random.default_rng(0))
    assert selector._basis.directions is basis.directions
    selector.tell(Need.PROFILE, range(60), profiles[:60] * 2)
    selector.select(10, rng=np.random.default_rng(0))
    assert selector._basis.directions is not basis.directions


class _Impatient:
    """A generator that does not let anybody try for ever."""

    def __init__(self, seed):
        self._rng = np.random.default_rng(seed)
        self._passes = 0

    def choice(self, *args, **kwargs):
        return self._rng.choice(*args, **kwargs)

    def permutation(self, places):
        self._passes += 1
        assert self._passes < 100, "the search does not end"
        return self._rng.permutation(places)


def test_the_search_ends_where_a_perfect_match_is_rounded_below_zero():
    # Three kinds that cancel each other, two clients of each: the distance of a perfect cohort is
    # 0 but for rounding, on either side.
    for seed in range(300):
        rng = np.random.default_rng(seed)
        two = rng.normal(size=(2, 2))
        kinds = np.concatenate([two, -two.sum(axis=0, keepdims=True)])
        chosen = _swap(np.tile(kinds, (2, 1)), np.ones(6), 3, 0, _Impatient(seed))
        assert sorted(chosen % 3) == [0, 1, 2]


def test_a_newcomer_far_outside_leaves_coordinates_that_can_be_squared():
    profiles = np.random.default_rng(0).normal(size=(12, 3))
    selector = make_selector("match", weights="matched").fit(profiles)
    rng = np.random.default_rng(0)
    selector.select(4, rng=rng)
    selector.join([12, 13], np.array([[1e300, -1e300, 5.0], [1e308, 1.0, 1e308]]))
    for _ in range(10):
        cohort = selector.select(4, rng=rng)
        assert np.isfinite(cohort.weights).all()
        assert len(set(cohort.ids.tolist())) == 4
