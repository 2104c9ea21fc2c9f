"""Runs with clients that are away, slow or drop out, and with other servers."""

import dataclasses

import numpy as np
import pytest
import torch

from fedcohort.federation import load_dataset
from fedcohort.simulation import Lockstep, RunConfig
from fedcohort.simulation.system import parse_availability

CPU = torch.device("cpu")
SMALL = RunConfig(clients=40, cohort=8, rounds=6, lr=0.1, selector="match")


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits")


def _records(config, digits, rounds=6):
    lockstep = Lockstep([config], digits, CPU)
    return [lockstep.advance()[0] for _ in range(rounds)], lockstep


def test_only_clients_that_are_there_are_chosen(digits):
    config = dataclasses.replace(SMALL, availability="0.4")
    there = parse_availability("0.4")
    for record in _records(config, digits)[0]:
        assert set(record.cohort) <= set(there.of(config.seed, record.round, 40).tolist())
        assert len(record.cohort) == 8


def test_a_round_without_clients_changes_nothing(digits, tmp_path):
    trace = np.ones((2, 40))
    trace[1] = 0
    np.save(tmp_path / "trace.npy", trace)
    config = dataclasses.replace(SMALL, availability=str(tmp_path / "trace.npy"))
    lockstep = Lockstep([config], digits, CPU)
    lockstep.advance()
    before = {name: values.clone() for name, values in lockstep.parameters.items()}
    (record,) = lockstep.advance()
    assert record.cohort == ()
    assert record.gemd is None
    assert record.bytes_down == record.bytes_up == 0
    assert all(torch.equal(v, before[n]) for n, v in lockstep.parameters.items())


def test_over_selection_waits_for_the_first(digits):
    config = dataclasses.replace(SMALL, over_selection=1.5, speed_spread=1.0)
    for record in _records(config, digits)[0]:
        assert len(record.cohort) == 12
        assert len(record.left_out) == 4


def test_over_selection_saves_time(digits):
    slow = dataclasses.replace(SMALL, speed_spread=1.0)
    fast = dataclasses.replace(slow, over_selection=1.5)
    times = [np.mean([r.elapsed for r in _records(c, digits)[0]]) for c in (slow, fast)]
    assert times[1] < 0.7 * times[0]


def test_what_drops_out_sends_nothing(digits):
    records, lockstep = _records(dataclasses.replace(SMALL, dropout=0.5), digits)
    model_bytes = lockstep.facts()[0]["model_bytes"]
    assert any(record.left_out for record in records)
    for record in records[1:]:
        assert record.bytes_up == model_bytes * (8 - len(record.left_out))
        assert record.bytes_down == model_bytes * 8


def test_a_deadline_bounds_every_round(digits):
    records, _ = _records(dataclasses.replace(SMALL, speed_spread=1.0, deadline=1.5), digits)
    assert all(record.elapsed <= 1.5 for record in records)
    assert any(record.left_out for record in records)


@pytest.mark.parametrize("server", ["avgm:momentum=0.5", "adam:lr=0.02"])
def test_a_server_goes_on_from_a_checkpoint_to_the_bit(digits, server):
    config = dataclasses.replace(SMALL, server=server, proximal=0.1, dropout=0.3)
    straight = Lockstep([config], digits, CPU)
    for _ in range(4):
        straight.advance()
    first = Lockstep([config], digits, CPU)
    for _ in range(2):
        first.advance()
    resumed = Lockstep([config], digits, CPU)
    resumed.restore(list(first.checkpoints().values()))
    for _ in range(2):
        resumed.advance()
    for name, values in straight.parameters.items():
        assert torch.equal(values, resumed.parameters[name]), name


def test_averaging_with_momentum_zero_is_averaging(digits):
    plain = _records(SMALL, digits, 3)[1]
    moved = _records(dataclasses.replace(SMALL, server="avgm:momentum=0"), digits, 3)[1]
    for name, values in plain.parameters.items():
        assert torch.allclose(values, moved.parameters[name], atol=1e-6), name


def test_a_run_is_the_same_beside_others(digits):
    odd = dataclasses.replace(SMALL, dropout=0.4, speed_spread=0.5, availability="daily:0.5")
    alone = _records(odd, digits, 3)[0]
    beside = Lockstep([SMALL, odd], digits, CPU)
    together = [beside.advance()[1] for _ in range(3)]
    assert [r.cohort for r in alone] == [r.cohort for r in together]
    assert [r.left_out for r in alone] == [r.left_out for r in together]
    assert [r.elapsed for r in alone] == [r.elapsed for r in together]


def test_oort_hears_durations(digits):
    config = dataclasses.replace(SMALL, selector="oort", speed_spread=1.0)
    _, lockstep = _records(config, digits, 3)
    told = lockstep._runs[0].selector._roster["duration"]
    assert np.isfinite(told).sum() >= 8
    assert np.nanstd(told) > 0.3
