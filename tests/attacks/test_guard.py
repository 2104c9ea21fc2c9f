"""Liars against selectors that look at profiles: what the guard prevents, and what it leaves."""

import numpy as np
import pytest
import torch
from liars import ATTACKS, copies, scaled
from running import lockstep_of

from fedcohort import make_selector
from fedcohort.errors import InvalidProfilesError
from fedcohort.metrics import gemd
from fedcohort.profiles import fc1_profiles
from fedcohort.selection import Need, Outcome, guard
from fedcohort.selection.guard import agreement, forged
from fedcohort.simulation import RunConfig
from fedcohort.simulation.materials import Materials

SELECTORS = ("dp3s", "match", "kcenter", "ward")
# Attacks that pose as honest clients with other data are out of a guard's reach.
FOUND = [name for name in ATTACKS if "as if" not in name]


def clusters(seed=0, spread=0.02):
    """Return profiles of ten kinds of ten clients each, and what they hold."""
    rng = np.random.default_rng(seed)
    kinds = np.repeat(np.arange(10), 10)
    profiles = 3 + rng.normal(size=(10, 30))[kinds] + spread * rng.normal(size=(100, 30))
    return profiles, 50 * np.eye(10, dtype=np.int64)[kinds]


def mean_gemd(name, profiles, counts, liars=(), **options):
    """Return the mean GEMD of the cohorts' honest clients against everyone's true data."""
    made = make_selector(name, **options).fit(profiles, sizes=counts.sum(axis=1))
    rng = np.random.default_rng(0)
    scores = []
    for _ in range(20):
        honest = np.setdiff1d(made.select(10, rng=rng).ids, liars)
        scores.append(gemd(counts, honest) if len(honest) else 2.0)
    return float(np.mean(scores))


def attacked(name, profiles, seed=1):
    count, change = ATTACKS[name]
    rng = np.random.default_rng(seed)
    liars = rng.choice(len(profiles), count, replace=False)
    return change(profiles, liars, rng), liars


@pytest.mark.parametrize("attack", FOUND)
@pytest.mark.parametrize("name", SELECTORS)
def test_cohorts_stay_as_they_were(name, attack):
    profiles, counts = clusters()
    clean = mean_gemd(name, profiles, counts)
    received, liars = attacked(attack, profiles)
    assert mean_gemd(name, received, counts, liars, guard="profiles") <= clean + 0.03


@pytest.mark.parametrize("spec", ["match", "dp3s:kernel=low-rank", "dp3s"])
def test_a_round_with_too_few_honest_clients_does_not_let_a_liar_into_the_next(spec):
    profiles, counts = clusters()
    profiles[7] *= 1e7
    made = make_selector(spec, guard="profiles").fit(profiles, sizes=counts.sum(axis=1))
    rng = np.random.default_rng(0)
    there = np.concatenate([[7], np.arange(10, 19)])
    assert 7 in made.select(10, there, rng=rng).ids
    cohorts = [made.select(10, rng=rng).ids for _ in range(20)]
    assert np.mean([gemd(counts, ids) for ids in cohorts]) < 0.1


@pytest.mark.parametrize("name", SELECTORS)
def test_without_the_guard_one_profile_is_enough(name):
    profiles, counts = clusters()
    received, liars = attacked("one profile × 1e6", profiles)
    assert mean_gemd(name, received, counts, liars) > 0.15


@pytest.fixture(scope="module")
def on_mnist(mnist):
    """Return a federation of MNIST with one class a client, and its profiles."""
    config = RunConfig(dataset="mnist", samples_per_client=200)
    materials = Materials({"mnist": mnist})
    federation = materials.federation(config)
    own = federation.partition.indices
    x = torch.from_numpy(mnist.x_train[own]).float() / mnist.scale
    sizes = torch.from_numpy(federation.sizes)
    x = (x - mnist.mean) / mnist.std
    profiles = fc1_profiles(materials.model(config), x, torch.arange(len(x)), sizes)
    return federation, profiles.double().numpy()


@pytest.mark.parametrize("attack", ["one profile × 1e6", "10 copies of a client"])
def test_cohorts_stay_as_they_were_on_mnist(on_mnist, attack):
    federation, profiles = on_mnist
    counts = federation.label_counts
    cases = [attacked(attack, profiles, seed) for seed in range(5)]

    def score(name, **options):
        return np.mean([mean_gemd(name, sent, counts, liars, **options) for sent, liars in cases])

    for name in ("dp3s", "match"):
        clean = mean_gemd(name, profiles, counts)
        assert score(name, guard="profiles") <= clean + 0.03
        assert score(name) > clean + 0.03


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", SELECTORS)
def test_a_profile_that_is_not_finite_is_refused_and_spoils_nothing(name, value):
    profiles, _ = clusters()
    made = make_selector(name, guard="profiles").fit(profiles)
    bad = profiles[:1].copy()
    bad[0, 3] = value
    with pytest.raises(InvalidProfilesError, match="client 100"):
        made.join([100], bad)
    assert len(made.clients) == 100
    expected = make_selector(name, guard="profiles").fit(profiles)
    ids = [s.select(10, rng=np.random.default_rng(0)).ids for s in (made, expected)]
    np.testing.assert_array_equal(*ids)


@pytest.mark.parametrize("kernel", ["exact", "low-rank"])
def test_the_paper_rule_is_untouched_where_nobody_lies(kernel):
    profiles, _ = clusters()
    plain = make_selector("dp3s", kernel=kernel).fit(profiles)
    guarded = make_selector("dp3s", kernel=kernel, guard="profiles").fit(profiles)
    assert not guarded.suspects
    for seed in range(5):
        ids = [s.select(10, rng=np.random.default_rng(seed)).ids for s in (plain, guarded)]
        np.testing.assert_array_equal(*ids)


@pytest.mark.parametrize("kernel", ["exact", "low-rank"])
def test_with_liars_dp3s_is_the_paper_rule_among_the_others(kernel):
    profiles, _ = clusters()
    received = scaled(1e6)(profiles, np.array([99]), np.random.default_rng(0))
    guarded = make_selector("dp3s", kernel=kernel, guard="profiles").fit(received)
    others = make_selector("dp3s", kernel=kernel).fit(profiles[:99])
    for seed in range(5):
        ids = [s.select(10, rng=np.random.default_rng(seed)).ids for s in (guarded, others)]
        np.testing.assert_array_equal(*ids)


@pytest.mark.parametrize("name", SELECTORS)
def test_suspects_fill_places_that_nobody_else_can(name):
    profiles, _ = clusters()
    received = scaled(1e6)(profiles, np.array([5]), np.random.default_rng(0))
    made = make_selector(name, guard="profiles").fit(received)
    assert set(made.suspects) == {5}
    rng = np.random.default_rng(0)
    assert sorted(made.select(4, [5, 17, 28, 44], rng=rng).ids) == [5, 17, 28, 44]
    assert 5 not in made.select(3, [5, 17, 28, 44], rng=rng).ids


@pytest.mark.parametrize("name", SELECTORS)
def test_a_liar_that_comes_later_is_found_and_may_leave(name):
    profiles, _ = clusters()
    made = make_selector(name, guard="profiles").fit(profiles)
    made.select(10, rng=np.random.default_rng(0))
    made.join([100], profiles[:1] * -1e4)
    assert set(made.suspects) == {100}
    for _ in range(5):
        assert 100 not in made.select(10, rng=np.random.default_rng(0)).ids
    made.leave([100])
    assert not made.suspects


def test_rare_clients_and_pairs_are_not_accused():
    rng = np.random.default_rng(0)
    everyone = 5 + 0.01 * rng.normal(size=(100, 40))
    everyone[:3] += rng.normal(size=40)
    assert not forged(everyone, np.ones(100)).any(), "three of a rare kind, far from all others"
    everyone[50] = everyone[51]
    assert not forged(everyone, np.ones(100)).any(), "two devices with the same data"


def test_equal_profiles_are_not_accused():
    assert not forged(np.ones((20, 3)), np.ones(20)).any()
    assert not forged(np.repeat(np.eye(4), 5, axis=0), np.ones(20)).any()
    assert not forged(np.zeros((1, 3)), np.ones(1)).any()


def test_a_huge_claimed_size_does_not_excuse_copies():
    profiles, _ = clusters()
    liars = np.arange(0, 100, 10)
    received = copies("outside", jitter=0.1)(profiles, liars, np.random.default_rng(0))
    sizes = np.full(100, 50.0)
    sizes[liars] = 1e9
    np.testing.assert_array_equal(np.flatnonzero(forged(received, sizes)), liars)


def test_large_clients_are_not_taken_for_copies():
    # Of one kind, and so large that their profiles hardly differ.
    rng = np.random.default_rng(0)
    sizes = np.where(np.arange(200) % 20 == 0, 400.0, 100.0)
    profiles = 2 + rng.normal(size=(200, 50)) / np.sqrt(sizes)[:, None]
    assert not forged(profiles, sizes).any()


def test_a_large_population_is_judged_by_a_sample(monkeypatch):
    rng = np.random.default_rng(0)
    kinds = np.repeat(np.arange(10), 60)
    profiles = 3 + rng.normal(size=(10, 30))[kinds] + 0.2 * rng.normal(size=(600, 30))
    liars = np.arange(0, 600, 20)
    received = copies("outside", jitter=0.05)(profiles, liars, rng)
    received[7] *= 1e6
    monkeypatch.setattr(guard, "LARGEST", 200)
    found = np.flatnonzero(forged(received, np.ones(600)))
    np.testing.assert_array_equal(found, np.union1d(liars, [7]))
    assert not forged(profiles, np.ones(600)).any()
    made = make_selector("match", guard="profiles").fit(received)
    assert not np.isin(made.select(10, rng=rng).ids, found).any()


# -- profiles against updates ----------------------------------------------------------------------


def test_training_that_contradicts_the_profile_is_seen():
    profiles, counts = clusters(spread=0.2)
    changes = counts / 50 - 0.1 + 0.05 * np.random.default_rng(0).normal(size=counts.shape)
    assert agreement(profiles, changes).min() > 0.5
    changes[[7, 42]] = changes[[93, 14]]
    np.testing.assert_array_equal(np.flatnonzero(agreement(profiles, changes) < 0), [7, 42])
    assert (agreement(profiles[:30], changes[:30]) == 1).all(), "too few to judge"


def test_liars_are_found_in_training():
    config = RunConfig(selector="match:guard=updates", rounds=40, batch_size=5, eval_every=100)
    lockstep = lockstep_of(config)
    run = lockstep._members[0]
    kinds = run.federation.label_counts.argmax(axis=1)
    liars = np.array([3, 14, 15, 92, 65])
    others = [np.flatnonzero(kinds == (kinds[liar] + 4) % 10)[0] for liar in liars]
    rng = np.random.default_rng(0)
    jitter = 0.02 * rng.normal(size=(5, run.profiles.shape[1]))
    run.selector.tell(Need.PROFILE, liars, run.profiles[others] + jitter)
    for _ in range(40):
        lockstep.advance()
    found = run.selector.suspects
    assert len(set(found) & set(liars.tolist())) >= 3
    assert len(set(found) - set(liars.tolist())) <= 2
    assert set(found.values()) == {"its training contradicts its profile"}


@pytest.mark.parametrize("name", SELECTORS)
def test_updates_are_asked_for_only_with_that_guard(name):
    assert Need.UPDATE not in make_selector(name, guard="profiles").needs
    made = make_selector(name, guard="updates", outputs=3).fit(clusters()[0])
    assert made.needs == {Need.PROFILE, Need.UPDATE}
    changes = np.random.default_rng(0).normal(size=(4, 7)).astype(np.float32)
    made.observe(Outcome(np.arange(4), np.array([True, True, False, True]), updates=changes))
    assert made.state()["client.update"].shape == (100, 3)
    again = make_selector(name, guard="updates", outputs=3)
    again.restore(made.state())
    ids = [s.select(10, rng=np.random.default_rng(0)).ids for s in (made, again)]
    np.testing.assert_array_equal(*ids)
