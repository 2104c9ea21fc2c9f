"""Numbers that were worked out by hand."""

import dataclasses

import numpy as np
import pytest

from fedcohort.leaderboard.entries import Entry, compare_entries
from fedcohort.leaderboard.standings import standing_rows, standings
from fedcohort.leaderboard.versus import versus
from fedcohort.simulation.scores import Target

LAST = 20
TARGET = Target(0.8)


def steps(selector, firsts, last=LAST, target=TARGET, **values):
    """An entry whose seeds are at 20 % until a round, and at 90 % from it on."""
    rounds = np.arange(last + 1)
    train = np.where(rounds >= np.array(firsts)[:, None], 0.9, 0.2)
    each = np.ones(len(firsts))
    kept = {
        "test": train,
        "bytes": np.tile(rounds, (len(firsts), 1)) * 100,
        "time": np.tile(rounds, (len(firsts), 1)) * 2.0,
        "gemd": 0.5 * each,
        "participation_variation": 0.1 * each,
        "selection_seconds": 0.001 * each,
        "worst_decile": 0.4 * each,
    }
    return Entry(
        selector=selector,
        seeds=tuple(range(len(firsts))),
        target=target,
        score="accuracy",
        evaluated_rounds=rounds,
        train=train,
        **kept | values,
    )


def test_the_mean_curve_arrives_with_its_last_seed():
    entry = steps("mine", (4, 6, 8))
    assert entry.rounds_to_target == 8
    assert entry.arrivals.tolist() == [4, 6, 8]
    assert (entry.bytes_to_target, entry.time_to_target) == (800, 16.0)
    assert steps("mine", (4, 99)).rounds_to_target is None
    assert steps("mine", (4, 99)).arrival == LAST + 1
    assert steps("mine", (4, 99)).arrivals.tolist() == [4, LAST + 1]


def test_rounds_are_counted_on_the_part_that_the_target_is_of():
    """Test scores arrive four rounds after training scores, the other rule's two rounds before."""
    tested = Target(0.8, "test")

    def both(selector, train, test):
        late = steps(selector, test).train
        return steps(selector, train, target=tested, test=late)

    ours, theirs = both("mine", (4, 4, 4), (8, 8, 8)), both("rule", (4, 4, 4), (2, 2, 2))
    assert (ours.rounds_to_target, ours.arrivals.tolist()) == (8, [8, 8, 8])
    assert (ours.interval.low, ours.bytes_to_target, ours.time_to_target) == (8, 800, 16.0)
    assert compare_entries(ours, theirs).difference == 6
    found = versus({"a": ours}, {"a": theirs})
    assert (found.speed, found.low, found.high) == pytest.approx((0.25, 0.25, 0.25))
    assert (found.seeds_won, found.seeds_lost) == (0, 3)
    trained = dataclasses.replace(ours, target=TARGET)
    assert (trained.rounds_to_target, trained.interval.low) == (4, 4)


def test_models_are_judged_by_the_test_part_where_there_is_one():
    fallen = steps("mine", (4, 4)).test.copy()
    fallen[:, -1] = 0.6, 0.4
    entry = steps("mine", (4, 4), test=fallen)
    assert entry.held_out == "test"
    (found,) = standings({"a": {"fedavg": entry}}, {"fedavg": ()})
    assert found.mean("final") == pytest.approx(0.5)
    assert found.mean("peak") == pytest.approx(0.9)
    assert found.mean("drop") == pytest.approx(0.4)
    assert found.mean("worst_decile") == pytest.approx(0.4)
    untested = steps("mine", (4, 4), test=np.full_like(fallen, np.nan))
    assert (untested.held_out, untested.final("test"), untested.drop("test")) == (
        "train",
        None,
        None,
    )


def test_a_seed_that_diverged_is_late_and_leaves_no_last_score():
    scores = steps("mine", (4, 4, 4)).train.copy()
    scores[2, 3:] = np.nan
    dead = dataclasses.replace(steps("mine", (4, 4, 4), test=scores), train=scores)
    assert dead.arrivals.tolist() == [4, 4, LAST + 1]
    assert (dead.rounds_to_target, dead.arrival) == (None, LAST + 1)
    assert (dead.interval.low, dead.interval.high) == (4, None)
    assert (dead.held_out, dead.final("test"), dead.only([0, 1]).final("test")) == (
        "test",
        None,
        0.9,
    )
    found = versus({"a": dead}, {"a": steps("rule", (8, 8, 8))})
    assert (found.speed, found.seeds_won, found.seeds_lost) == (8 / (LAST + 1), 2, 1)
    # Resamples without the seed arrive in half the rounds.
    assert (found.low, found.high) == pytest.approx((8 / (LAST + 1), 2))


def test_what_one_condition_does_not_know_is_not_known_of_all():
    unknown = steps("fedavg", (4, 4), worst_decile=np.full(2, np.nan))
    entries = {"a": {"fedavg": steps("fedavg", (4, 4))}, "b": {"fedavg": unknown}}
    (found,) = standings(entries, {"fedavg": ()})
    assert (found.mean("worst_decile"), found.mean("gemd")) == (None, 0.5)
    (row,) = standing_rows([found])
    assert (row["worst_decile"], row["final"], row["drop"]) == (None, 0.9, 0.0)


def test_seeds_are_paired_and_counted():
    ours = {"a": steps("mine", (4, 6, 8)), "b": steps("mine", (5, 5, 5))}
    theirs = {"a": steps("rule", (8, 6, 7)), "b": steps("rule", (10, 99, 4))}
    found = versus(ours, theirs)
    assert found.rule == "rule"
    # a: 4<8, 6=6, 8>7; b: 5<10, 5<never, 5>4.
    assert (found.seeds_won, found.seeds_lost, found.seeds_tied) == (3, 2, 1)
    # Mean curves: 8 against 8, and 5 against never, which counts as 21.
    assert found.speed == pytest.approx((1 * 21 / 5) ** 0.5)


def test_a_win_is_an_interval_that_leaves_out_0():
    ours = {
        "a": steps("mine", (4,) * 6),
        "b": steps("mine", (8,) * 6),
        "c": steps("mine", (5,) * 6),
    }
    theirs = {
        "a": steps("rule", (6,) * 6),
        "b": steps("rule", (4,) * 6),
        "c": steps("rule", (5,) * 6),
    }
    found = versus(ours, theirs)
    assert (found.won, found.lost) == (1, 1)
    assert found.comparisons["a"].difference == -2
    assert found.comparisons["b"].difference == 4
    # Every resample of equal seeds is the same: 6/4, 4/8 and 5/5.
    exact = (1.5 * 0.5 * 1) ** (1 / 3)
    assert (found.speed, found.low, found.high) == pytest.approx((exact,) * 3)
    assert versus(theirs, ours).speed == pytest.approx(1 / exact)


def test_the_interval_of_the_speed_comes_from_pairs():
    """Ours is always twice as fast as theirs with the same seed, whatever the seed."""
    ours = {"a": steps("mine", (2, 3, 4, 5, 6))}
    theirs = {"a": steps("rule", (4, 6, 8, 10, 12))}
    found = versus(ours, theirs)
    assert (found.low, found.high) == pytest.approx((2.0, 2.0))
    mixed = versus(ours, {"a": steps("rule", (12, 10, 8, 6, 4))})
    assert mixed.low < 2 < mixed.high


def test_one_seed_has_no_interval():
    ours, theirs = {"a": steps("mine", (4,))}, {"a": steps("rule", (8,))}
    found = versus(ours, theirs)
    assert (found.speed, found.low, found.high) == (2.0, None, None)
    assert (found.won, found.lost, found.seeds_won) == (0, 0, 1)


def test_entries_are_compared_over_the_seeds_that_both_have():
    ours, theirs = steps("mine", (4, 4, 4)), steps("rule", (4, 6, 6))
    assert compare_entries(ours.only([1, 2]), theirs).difference == -2
    assert ours.only([2]).seeds == (2,)


def test_standings_are_of_rules_that_ran_everywhere():
    entries = {
        "a": {n: steps(n, (r, r)) for n, r in (("fedavg", 8), ("mine", 4), ("rare", 2))},
        "b": {n: steps(n, (r, r)) for n, r in (("fedavg", 6), ("mine", 12))},
    }
    found = standings(entries, {"fedavg": (), "mine": ("loss",)})
    assert [s.selector for s in found] == ["fedavg", "mine"]
    mine = found[1]
    assert mine.speeds == {"a": 2.0, "b": 0.5}
    assert (mine.speed, mine.least_speed) == pytest.approx((1.0, 0.5))
    assert (mine.faster, mine.slower) == (1, 1)
    assert (mine.bytes, mine.time) == pytest.approx((1.0, 1.0))
