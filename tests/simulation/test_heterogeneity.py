"""Runs with clients that are away, slow or drop out, and with other servers."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from running import lockstep_of, without_times

from fedcohort.simulation import RunConfig
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.system import parse_availability
from fedcohort.training.inputs import prepare_inputs

SMALL = RunConfig(clients=40, cohort=8, rounds=6, lr=0.1, selector="match")


def _records(config, rounds=6):
    lockstep = lockstep_of(config)
    return [lockstep.advance()[0] for _ in range(rounds)], lockstep


def test_only_clients_that_are_there_are_chosen():
    config = dataclasses.replace(SMALL, availability="0.4")
    there = parse_availability("0.4")
    for record in _records(config)[0]:
        assert set(record.cohort) <= set(there.of(config.seed, record.round, 40).tolist())
        assert len(record.cohort) == 8


def test_a_round_without_clients_changes_nothing(tmp_path):
    trace = np.ones((2, 40))
    trace[1] = 0
    np.save(tmp_path / "trace.npy", trace)
    config = dataclasses.replace(SMALL, availability=str(tmp_path / "trace.npy"))
    lockstep = lockstep_of(config)
    lockstep.advance()
    before = {name: values.clone() for name, values in lockstep.parameters.items()}
    (record,) = lockstep.advance()
    assert record.cohort == ()
    assert record.gemd is None
    assert record.bytes_down == record.bytes_up == 0
    assert all(torch.equal(v, before[n]) for n, v in lockstep.parameters.items())


def test_over_selection_waits_for_the_first():
    config = dataclasses.replace(SMALL, over_selection=1.5, speed_spread=1.0)
    for record in _records(config)[0]:
        assert len(record.cohort) == 12
        assert len(record.left_out) == 4


def test_over_selection_saves_time():
    slow = dataclasses.replace(SMALL, speed_spread=1.0)
    fast = dataclasses.replace(slow, over_selection=1.5)
    times = [np.mean([r.elapsed for r in _records(c)[0]]) for c in (slow, fast)]
    assert times[1] < 0.7 * times[0]


def test_what_drops_out_sends_nothing():
    records, lockstep = _records(dataclasses.replace(SMALL, dropout=0.5))
    model_bytes = lockstep.facts()[0]["model_bytes"]
    assert any(record.left_out for record in records)
    for record in records[1:]:
        assert record.bytes_up == model_bytes * (8 - len(record.left_out))
        assert record.bytes_down == model_bytes * 8


@pytest.mark.parametrize(
    "missing", [{"dropout": 0.5}, {"over_selection": 1.5, "speed_spread": 1.0}, {"deadline": 1.0}]
)
def test_the_weight_of_who_does_not_answer_goes_to_the_rest(missing):
    # One step on all samples of each: together, one step on the samples of those who answer.
    config = RunConfig(
        clients=40, cohort=8, selector="fedavg", lr=0.1, size_spread=0.5, seed=2, **missing
    )
    materials = Materials()
    dataset, model = materials.dataset(config), copy.deepcopy(materials.model(config))
    federation = materials.federation(config)
    (record,), lockstep = _records(config, 1)
    answered = sorted(set(record.cohort) - set(record.left_out))
    assert record.left_out
    assert answered
    samples = np.concatenate([federation.partition.of(client) for client in answered])
    outputs = model(prepare_inputs(dataset.x_train[samples], dataset, standard=True))
    loss = F.cross_entropy(outputs, torch.from_numpy(dataset.y_train[samples]).long())
    gradients = torch.autograd.grad(loss, [*model.parameters()])
    for (name, first), gradient in zip(model.named_parameters(), gradients, strict=True):
        expected = (first - 0.1 * gradient).detach()
        torch.testing.assert_close(lockstep.parameters[name][0], expected, atol=1e-6, rtol=1e-4)


def test_a_deadline_bounds_every_round():
    records, _ = _records(dataclasses.replace(SMALL, speed_spread=1.0, deadline=1.5))
    assert all(record.elapsed <= 1.5 for record in records)
    assert any(record.left_out for record in records)


@pytest.mark.parametrize("server", ["avgm:momentum=0.5", "adam:lr=0.02"])
def test_a_server_goes_on_from_a_checkpoint_to_the_bit(server):
    config = dataclasses.replace(SMALL, server=server, proximal=0.1, dropout=0.3)
    straight = lockstep_of(config)
    for _ in range(4):
        straight.advance()
    first = lockstep_of(config)
    for _ in range(2):
        first.advance()
    resumed = lockstep_of(config)
    resumed.resume(first.states())
    for _ in range(2):
        resumed.advance()
    for name, values in straight.parameters.items():
        assert torch.equal(values, resumed.parameters[name]), name


def test_averaging_with_momentum_zero_is_averaging():
    plain = _records(SMALL, 3)[1]
    moved = _records(dataclasses.replace(SMALL, server="avgm:momentum=0"), 3)[1]
    for name, values in plain.parameters.items():
        assert torch.allclose(values, moved.parameters[name], atol=1e-6), name


def test_a_run_is_the_same_beside_others():
    odd = dataclasses.replace(SMALL, dropout=0.4, speed_spread=0.5, availability="daily:0.5")
    alone = _records(odd, 3)[0]
    beside = lockstep_of(SMALL, odd)
    together = [beside.advance()[1] for _ in range(3)]
    assert list(map(without_times, alone)) == list(map(without_times, together))


def test_oort_hears_durations():
    config = dataclasses.replace(SMALL, selector="oort", speed_spread=1.0)
    _, lockstep = _records(config, 3)
    told = lockstep._members[0].selector._roster["duration"]
    assert np.isfinite(told).sum() >= 8
    assert np.nanstd(told) > 0.3
