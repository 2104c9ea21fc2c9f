"""What the rounds of a group took: starting is no part of it."""

import dataclasses
from types import SimpleNamespace

import pytest

from fedcohort.simulation import RunConfig, group_training
from fedcohort.simulation.group_training import GroupTraining

RUN = RunConfig(rounds=60)
START, FIRST, OTHERS = 3.0, 28.0, 0.5


class _Lockstep:
    """Only tells the time: starting takes long, the first round longer."""

    def __init__(self, configs, clock, _device):
        self.configs, self.clock, self.round = configs, clock, 0
        self.clock.now += START
        self._cold = True

    def resume(self, states):
        self.round = states

    def start(self):
        self.clock.now += START
        return [0]

    def advance(self):
        self.clock.now += FIRST if self._cold else OTHERS
        self._cold = False
        self.round += 1
        return [self.round]

    def states(self):
        return ["state"]

    def state_dict(self, _run):
        return {}

    def final_scores(self, _run):
        return []


@pytest.fixture
def training(monkeypatch):
    """Return a function that begins a group at a round."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(group_training, "Lockstep", _Lockstep)
    monkeypatch.setattr(group_training.time, "monotonic", lambda: clock.now)

    def begin(round_=0, rounds=RUN.rounds):
        claim = SimpleNamespace(configs=[dataclasses.replace(RUN, rounds=rounds)], states=round_)
        return GroupTraining(claim, clock, None)

    return begin


def test_the_first_round_after_a_start_is_counted_like_those_after_it(training):
    group = training()
    alone = group.advance(5.0)
    assert (alone.records[RUN.key], alone.seconds) == ([0, 1], 0.0)
    following = group.advance(5.0)
    assert following.seconds == pytest.approx(OTHERS * (len(following.records[RUN.key]) + 1))
    assert group.advance(5.0).seconds == pytest.approx(OTHERS * len(following.records[RUN.key]))


def test_so_it_is_within_one_chunk_and_after_a_restart(training):
    chunk = training().advance(40.0)
    rounds = chunk.records[RUN.key][-1]
    assert rounds > 10
    assert chunk.seconds == pytest.approx(OTHERS * rounds)
    resumed = training(round_=50).advance(600.0)
    assert not resumed.states
    assert resumed.seconds == pytest.approx(OTHERS * 10)


def test_a_group_of_one_round_has_no_pace(training):
    chunk = training(rounds=1).advance(600.0)
    assert (chunk.states, chunk.seconds) == ([], 0.0)
