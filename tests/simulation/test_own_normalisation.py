"""BatchNorm that stays with each client (FedBN), against the text-book loop."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from running import lockstep_of, without_times
from torch import nn

from fedcohort.errors import InvalidParameterError
from fedcohort.federation import build_federation, load_dataset
from fedcohort.simulation import RunConfig
from fedcohort.simulation.content import with_content
from fedcohort.simulation.execution.runner import prepare_study
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.study import study_of_runs
from fedcohort.training.modules import named_state, sent_values
from fedcohort.training.sequential import SEQUENTIAL

NORM = ("norm.weight", "norm.bias", "norm.running_mean", "norm.running_var")


class Normed(nn.Module):
    """A hidden layer with BatchNorm behind it."""

    def __init__(self, input_shape, classes):
        super().__init__()
        self.fc = nn.Linear(int(np.prod(input_shape)), 12)
        self.norm = nn.BatchNorm1d(12)
        self.out = nn.Linear(12, classes)

    def forward(self, x):
        return self.out(F.relu(self.norm(self.fc(x.flatten(1)))))


LOCAL = RunConfig(
    clients=12,
    cohort=4,
    rounds=4,
    epochs=2.0,
    batch_size=16,
    skew="0.5",
    model=f"{__file__}:Normed",
    normalisation="local",
    selector="fedavg",
)


def with_selectors(*selectors, base=LOCAL):
    return [dataclasses.replace(base, selector=selector) for selector in selectors]


def advanced(configs, rounds, trainer=None):
    lockstep = lockstep_of(*configs, trainer=trainer)
    records = [lockstep.start(), *(lockstep.advance() for _ in range(rounds))]
    return lockstep, records


def test_three_rounds_are_fedbn():
    """FedBN written out by hand: full batches, one pass, the engine's cohorts."""
    config = dataclasses.replace(LOCAL, batch_size=None, epochs=1.0)
    lockstep = lockstep_of(config)
    dataset = load_dataset("digits")
    federation = build_federation(dataset, skew="0.5", clients=12, seed=0)
    x = (torch.from_numpy(dataset.x_train).float() / dataset.scale - dataset.mean) / dataset.std
    y = torch.from_numpy(dataset.y_train)
    shared = {n: v[0].clone() for n, v in lockstep.parameters.items() if n not in NORM}
    own = {c: {n: lockstep.parameters[n][0].clone() for n in NORM} for c in range(12)}
    seen = set()
    for _ in range(3):
        (record,) = lockstep.advance()
        total = {name: torch.zeros_like(w) for name, w in shared.items()}
        samples = sum(federation.sizes[list(record.cohort)])
        for client in record.cohort:
            mine = torch.from_numpy(federation.partition.of(client))
            model = loaded(lockstep._model, shared | own[client]).train()
            loss = F.cross_entropy(model(x[mine]), y[mine])
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for p, gradient in zip(model.parameters(), gradients, strict=True):
                    p -= config.lr * gradient
            state = {n: v.detach().clone() for n, v in named_state(model)}
            own[client] = {n: state[n] for n in NORM}
            for name in shared:
                total[name] += len(mine) / samples * state[name]
            seen.add(client)
        shared = total
        right = 0
        for client in range(12):
            mine = torch.from_numpy(federation.partition.of(client))
            model = loaded(lockstep._model, shared | own[client]).eval()
            right += int((model(x[mine]).argmax(1) == y[mine]).sum())
        # Of two outputs that are equal up to rounding, either may be the larger.
        score = right / federation.sizes.sum()
        assert record.train_score == pytest.approx(score, abs=2 / federation.sizes.sum())
    for name, values in shared.items():
        assert torch.allclose(values, lockstep.parameters[name][0], atol=1e-5), name
    shares = federation.sizes[list(seen)] / federation.sizes[list(seen)].sum()
    for name in NORM:
        mean = sum(float(s) * own[c][name] for s, c in zip(shares, seen, strict=True))
        assert torch.allclose(mean, lockstep.parameters[name][0], atol=1e-5), name
    assert 4 < len(seen) < 12


def loaded(model, values):
    made = copy.deepcopy(model)
    with torch.no_grad():
        for name, value in named_state(made):
            value.copy_(values[name])
    return made


def test_it_agrees_with_the_sequential_oracle():
    configs = with_selectors("fedavg", "pow-d", "divfl")
    ours, records = advanced(configs, 3)
    plain, expected = advanced(configs, 3, SEQUENTIAL)
    for name, values in plain.parameters.items():
        assert torch.allclose(values, ours.parameters[name], atol=1e-4), name
    for mine, theirs in zip(records, expected, strict=True):
        assert [r.cohort for r in mine] == [r.cohort for r in theirs]
        for a, b in zip(mine, theirs, strict=True):
            assert a.test_loss == pytest.approx(b.test_loss, rel=1e-3)
            assert a.train_loss == pytest.approx(b.train_loss, rel=1e-3)


def test_a_run_is_the_same_alone_among_others_and_resumed():
    configs = with_selectors("fedavg", "pow-d", "dp3s", "divfl")
    together, records = advanced(configs, 4)
    for place, config in enumerate(configs):
        alone, own = advanced([config], 4)
        for name, values in alone.parameters.items():
            assert torch.equal(values[0], together.parameters[name][place]), config.selector
        for ours, theirs in zip(own, records, strict=True):
            assert without_times(ours[0]) == without_times(theirs[place])
    first, _ = advanced(configs, 2)
    resumed = lockstep_of(*configs)
    resumed.resume(first.states())
    rest = [resumed.advance() for _ in range(2)]
    for name, values in together.parameters.items():
        assert torch.equal(values, resumed.parameters[name]), name
    for ours, theirs in zip(rest, records[3:], strict=True):
        assert list(map(without_times, ours)) == list(map(without_times, theirs))


def test_whoever_has_not_trained_has_the_first_normalisation():
    lockstep = lockstep_of(LOCAL)
    first = {name: lockstep.parameters[name][0].clone() for name in NORM}
    (record,) = lockstep.advance()
    state = lockstep.states()[0][1]
    assert np.flatnonzero(state["own.trained"]).tolist() == sorted(record.cohort)
    for client in range(12):
        same = np.array_equal(state["own.norm.running_mean"][client], first["norm.running_mean"])
        assert same == (client not in record.cohort)


def test_what_is_not_sent_is_not_counted():
    average = dataclasses.replace(LOCAL, normalisation="average")
    sent = {}
    for config in (LOCAL, average):
        lockstep, ((_,), (record,)) = advanced([config], 1)
        sent[config.normalisation] = record.bytes_down, lockstep.facts()[0]["model_bytes"]
    values = sent_values(lockstep._model)
    assert sent["average"] == (4 * 4 * values, 4 * values)
    assert sent["local"] == (4 * 4 * (values - 4 * 12), 4 * (values - 4 * 12))


@pytest.mark.parametrize("profile", ["gradient", "representative-gradient"])
def test_what_is_not_sent_is_in_no_profile(profile):
    base = dataclasses.replace(LOCAL, profile=profile, selector="dp3s")
    average = dataclasses.replace(base, normalisation="average")
    lengths = [lockstep_of(c).federations()[0]["profiles"].shape[1] for c in (base, average)]
    assert lengths[0] == lengths[1] - 2 * 12


def test_clients_are_evaluated_on_a_part_of_their_samples_until_the_last_round():
    config = dataclasses.replace(LOCAL, eval_samples=300, rounds=1)
    lockstep, (before, (after,)) = advanced([config], 1)
    assert lockstep.facts()[0]["train_evaluated_on"] == 300
    assert before[0].train_score * 300 == pytest.approx(round(before[0].train_score * 300))
    whole = int(
        build_federation(load_dataset("digits"), skew="0.5", clients=12, seed=0).sizes.sum()
    )
    assert after.train_score * whole == pytest.approx(round(after.train_score * whole))


def test_final_scores_are_those_of_each_client_with_its_own_normalisation():
    lockstep, records = advanced([LOCAL], 4)
    clients = [s for s in lockstep.final_scores(0) if s.kind == "client"]
    right = sum(s.score * s.samples for s in clients)
    mean = right / sum(s.samples for s in clients)
    assert mean == pytest.approx(records[-1][0].train_score, abs=1e-12)


def test_models_without_batchnorm_are_refused_before_anything_is_written():
    config = dataclasses.replace(LOCAL, model="auto")
    with pytest.raises(InvalidParameterError, match="local, and the model 'auto' has no BatchNorm"):
        prepare_study(study_of_runs([config]))


def test_it_is_part_of_the_key():
    study = study_of_runs([LOCAL, dataclasses.replace(LOCAL, normalisation="average")])
    first, second = with_content(study, Materials()).configs
    assert first.key != second.key
    assert first.lockstep_key() != second.lockstep_key()
