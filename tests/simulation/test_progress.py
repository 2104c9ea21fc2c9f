import dataclasses

from fedcohort.simulation.groups import GroupState
from fedcohort.simulation.progress import progress_of, seconds_left


def _group(name, shape, round_, seconds, rounds=10, cost=1.0, live=None):
    return GroupState(name, 2, rounds, round_, live or round_, shape, cost, seconds)


def test_the_time_left_is_measured_by_shape():
    slow, fast = _group("a", "slow", 5, 50.0), _group("b", "fast", 5, 5.0)
    assert seconds_left([_group("c", "slow", 0, 0.0)]) is None
    assert seconds_left([slow, fast]) == 5 * 10 + 5 * 1
    assert seconds_left([slow, fast], workers=2) == 50, "the longest group is not divided"
    unknown = _group("d", "new", 0, 0.0, cost=2.0)
    assert seconds_left([slow, fast, unknown]) == 55 + 10 * 2 * 5.5
    assert seconds_left([unknown], timed=[slow, fast]) == 10 * 2 * 5.5
    progress = progress_of([slow, dataclasses.replace(fast, live=7)], "digits", 1)
    assert (progress.done, progress.total, progress.seconds_left) == (24, 40, 53)


def test_a_group_whose_rounds_are_not_timed_says_nothing_of_the_time():
    started, timed = _group("a", "same", 1, 0.0), _group("b", "same", 5, 50.0)
    assert seconds_left([started]) is None
    assert seconds_left([started, timed]) == 9 * 10 + 5 * 10
