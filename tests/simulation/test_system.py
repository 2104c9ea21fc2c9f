"""Clients that are away, slow, or drop out."""

import numpy as np
import pytest

from fedcohort.errors import InvalidParameterError
from fedcohort.simulation.system import Availability, attend, over_selected, parse_availability

IDS = np.arange(1000)
WORK = np.ones(1000)


def _attend(round_=1, ids=IDS, wanted=1000, spread=0.0, dropout=0.0, deadline=None, able=None):
    work, able = np.ones(len(ids)), np.ones(len(ids), bool) if able is None else able
    return attend(
        *(3, round_, ids, work, wanted),
        able=able,
        spread=spread,
        dropout=dropout,
        deadline=deadline,
    )


def test_without_anything_everyone_answers_after_their_work():
    attendance = _attend()
    assert attendance.answered.all()
    assert attendance.elapsed == 1.0


def test_speeds_are_lognormal_and_stay_with_the_client():
    logs = np.log([_attend(round_, spread=0.8).durations for round_ in range(1, 41)])
    # 1000 clients: the spread of their means is known to 2.3 % (1 σ), that of a round to 2.3 %.
    means = logs.mean(axis=0)
    assert np.std(means) == pytest.approx(np.sqrt(0.8**2 + 0.4**2 / 40), rel=0.1)
    assert np.std(logs - means) == pytest.approx(0.4, rel=0.05)
    assert abs(np.median(means)) < 0.1


def test_the_round_ends_with_the_wanted_answers():
    attendance = _attend(wanted=600, spread=1.0)
    assert attendance.answered.sum() == 600
    assert attendance.elapsed == attendance.durations[attendance.answered].max()
    assert attendance.durations[~attendance.answered].min() >= attendance.elapsed


def test_a_deadline_leaves_out_the_slow():
    attendance = _attend(spread=1.0, deadline=2.0)
    assert np.array_equal(attendance.answered, attendance.durations <= 2.0)
    assert attendance.elapsed == 2.0


def test_dropouts_are_as_many_as_asked_and_others_each_round():
    rounds = [~_attend(round_, dropout=0.3).answered for round_ in range(1, 21)]
    # 20,000 draws: 0.3 is met within 0.01 with probability .998.
    assert np.mean(rounds) == pytest.approx(0.3, abs=0.01)
    assert 0.05 < np.mean(rounds[0] & rounds[1]) < 0.13


def test_a_client_does_the_same_whoever_is_asked_beside_it():
    everyone = _attend(spread=0.5, dropout=0.4)
    some = _attend(ids=IDS[100:200], spread=0.5, dropout=0.4)
    assert np.array_equal(some.durations, everyone.durations[100:200])
    assert np.array_equal(some.answered, everyone.answered[100:200])


def test_nobody_answers_and_time_passes():
    attendance = _attend(ids=IDS[:1], wanted=1, dropout=1.0)
    assert not attendance.answered.any()
    assert attendance.elapsed == 1.0


@pytest.mark.parametrize(("factor", "asked"), [(1.0, 10), (1.1, 11), (1.25, 13), (100.0, 80)])
def test_over_selection(factor, asked):
    assert over_selected(10, factor, there=80) == asked


def test_availability_at_random_and_by_day():
    at_random = parse_availability("0.7")
    counts = [len(at_random.of(0, round_, 1000)) for round_ in range(1, 21)]
    assert np.mean(counts) == pytest.approx(700, abs=10)
    daily = parse_availability("daily:0.5")
    first, next_day = daily.of(0, 5, 1000), daily.of(0, 29, 1000)
    assert np.array_equal(first, next_day)
    # Half a day later the others are there; a client on the border may be in both or neither.
    later = daily.of(0, 17, 1000)
    assert len(np.intersect1d(first, later)) <= 1
    assert parse_availability("always").of(0, 1, 1000) is None


def test_a_trace_repeats(tmp_path):
    trace = np.array([[1, 0, 1], [0, 1, 1]])
    np.save(tmp_path / "trace.npy", trace)
    availability = parse_availability(str(tmp_path / "trace.npy"))
    there = [availability.of(0, round_, 3).tolist() for round_ in (1, 2, 3)]
    assert there == [[0, 2], [1, 2], [0, 2]]
    with pytest.raises(InvalidParameterError, match="3 clients where the federation has 4"):
        availability.check(4)


@pytest.mark.parametrize("text", ["sometimes", "0", "1.5", "daily:", "daily:2", "missing.npy"])
def test_wrong_availability_is_refused(text):
    with pytest.raises(InvalidParameterError):
        parse_availability(text)


def test_a_trace_that_is_not_one_is_refused(tmp_path):
    np.save(tmp_path / "trace.npy", np.array([0.5, 2.0]))
    with pytest.raises(InvalidParameterError, match="zeros and ones"):
        parse_availability(str(tmp_path / "trace.npy"))


def test_the_whole_is_deterministic():
    assert Availability(0.5).of(1, 2, 50).tolist() == Availability(0.5).of(1, 2, 50).tolist()
    assert Availability(0.5).of(1, 2, 50).tolist() != Availability(0.5).of(2, 2, 50).tolist()
