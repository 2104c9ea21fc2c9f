"""The round loop against a text-book loop, alone, batched, resumed and disturbed."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from running import lockstep_of, run, without_times

from fedcohort.errors import CohortSizeError
from fedcohort.federation import build_federation, load_dataset
from fedcohort.metrics import gemd
from fedcohort.randomness import generator
from fedcohort.simulation import RunConfig, Store
from fedcohort.training.batched import BATCHED
from fedcohort.training.sequential import SEQUENTIAL

SMALL = RunConfig(clients=20, cohort=5, rounds=3, epochs=2.0, lr=0.1)


def _variants(*selectors, base=SMALL, seeds=(0,)):
    return [
        dataclasses.replace(base, selector=selector, seed=seed)
        for selector in selectors
        for seed in seeds
    ]


def _parameters_after(configs, rounds, trainer=None):
    lockstep = lockstep_of(*configs, trainer=trainer)
    records = [lockstep.advance() for _ in range(rounds)]
    return lockstep.parameters, records


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits")


@pytest.mark.parametrize(
    "base",
    [
        SMALL,
        dataclasses.replace(SMALL, batch_size=8, momentum=0.5, skew="H"),
        dataclasses.replace(SMALL, size_spread=1.0, skew="dirichlet:0.3", batch_size=16),
    ],
    ids=["full-batch", "mini-batch", "unequal"],
)
def test_batched_agrees_with_the_sequential_oracle_on_digits(base):
    configs = _variants("dp3s", "fedavg", "clustered", "fedsae", base=base, seeds=(0, 1))
    # Two rounds: where two values of a pool are equal up to rounding, paths part for good.
    batched, records = _parameters_after(configs, 2, BATCHED)
    plain, oracle = _parameters_after(configs, 2, SEQUENTIAL)
    for name, values in plain.items():
        assert torch.allclose(values, batched[name], atol=1e-4), name
    for ours, theirs in zip(records, oracle, strict=True):
        assert [r.cohort for r in ours] == [r.cohort for r in theirs]


@pytest.mark.usefixtures("mnist")
def test_batched_agrees_with_the_sequential_oracle_on_mnist():
    base = RunConfig(
        dataset="mnist", rounds=9, cohort=4, samples_per_client=60, batch_size=20, eval_every=9
    )
    configs = _variants("dp3s", "fedavg", base=base)
    batched, _ = _parameters_after(configs, 3, BATCHED)
    plain, _ = _parameters_after(configs, 3, SEQUENTIAL)
    for name, values in plain.items():
        assert torch.allclose(values, batched[name], atol=1e-4), name


def test_three_rounds_are_the_papers_algorithm(digits):
    """The whole of FedAvg written out by hand, with the engine's cohorts."""
    config = dataclasses.replace(SMALL, selector="fedavg", batch_size=None, epochs=1.0)
    lockstep = lockstep_of(config)
    names = [name for name, _ in lockstep._model.named_parameters()]
    model = lockstep._model
    federation = build_federation(digits, skew="1", clients=20, seed=0)
    x = torch.from_numpy(digits.x_train).float() / digits.scale
    x = (x - digits.mean) / digits.std
    y = torch.from_numpy(digits.y_train)
    weights = {name: lockstep.parameters[name][0].clone() for name in names}
    for _ in range(3):
        (record,) = lockstep.advance()
        total = {name: torch.zeros_like(w) for name, w in weights.items()}
        count = sum(federation.sizes[list(record.cohort)])
        for client in record.cohort:
            own = torch.from_numpy(federation.partition.of(client))
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.copy_(weights[name])
            loss = F.cross_entropy(model(x[own]), y[own])
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            for name, gradient in zip(names, gradients, strict=True):
                step = weights[name] - config.lr * gradient
                total[name] += len(own) / count * step
        weights = total
    for name in names:
        assert torch.allclose(weights[name], lockstep.parameters[name][0], atol=1e-5)


def test_cohorts_come_from_the_run_seed_and_the_round_alone():
    _, records = _parameters_after(_variants("fedavg"), 3)
    for record in (r for (r,) in records):
        rng = generator(0, "selection", record.round)
        assert record.cohort == tuple(rng.choice(np.arange(20), size=5, replace=False).tolist())


def test_gemd_and_bytes_are_those_of_the_cohort(digits):
    lockstep = lockstep_of(*_variants("dp3s", "fedavg", "fedsae", "clustered"))
    federation = build_federation(digits, skew="1", clients=20, seed=0)
    model_bytes = 4 * sum(v[0].numel() for v in lockstep.parameters.values())
    first, second = lockstep.advance(), lockstep.advance()
    for record in (*first, *second):
        assert record.gemd == pytest.approx(gemd(federation.label_counts, list(record.cohort)))
    dp3s, fedavg, fedsae, clustered = first
    assert fedavg.bytes_down == fedavg.bytes_up == 5 * model_bytes
    assert dp3s.bytes_down == 20 * model_bytes, "everyone needs the first model to profile with"
    assert dp3s.bytes_up == 5 * model_bytes + 20 * 32 * 4
    assert fedsae.bytes_down == 20 * model_bytes, "everyone is asked its first loss"
    assert fedsae.bytes_up == 5 * model_bytes + 20 * 4
    asked = len({*fedsae.cohort, *second[2].cohort})
    assert second[2].bytes_down == asked * model_bytes, "the last cohort tells the new model's loss"
    assert second[2].bytes_up == 5 * model_bytes + 5 * 4
    assert clustered.bytes_down == len(set(clustered.cohort)) * model_bytes
    assert second[0].bytes_down == second[0].bytes_up == 5 * model_bytes


@pytest.mark.parametrize("selector", ["clustered", "pow-d:variant=rpow-d", "hics", "fedavg"])
def test_gemd_is_of_the_mixture_that_is_trained_on(digits, selector):
    base = dataclasses.replace(SMALL, skew="dirichlet:0.3", size_spread=1.0, rounds=8)
    lockstep = lockstep_of(*_variants(selector, base=base))
    federation = build_federation(digits, skew="dirichlet:0.3", clients=20, seed=0, size_spread=1.0)
    by_size = selector == "fedavg"
    differ = 0
    for _ in range(8):
        (record,) = lockstep.advance()
        ids = list(record.cohort)
        weights = federation.sizes[ids] if by_size else np.ones(len(ids))
        assert record.gemd == pytest.approx(gemd(federation.label_counts, ids, weights))
        differ += abs(record.gemd - gemd(federation.label_counts, ids)) > 0.01
    assert (differ > 0) != by_size


def _losses_by_hand(lockstep, federation):
    """Return the mean loss of the first run's global model on each client's data."""
    x, y = lockstep._data.train
    model = lockstep._model
    model.load_state_dict({n: v[0] for n, v in lockstep.parameters.items()})
    with torch.no_grad():
        losses = F.cross_entropy(model(x), y, reduction="none").numpy()
    return np.array([losses[federation.partition.of(c)].mean() for c in range(20)])


def test_afl_hears_the_loss_of_the_received_model_and_fedsae_that_of_the_new_one(digits):
    federation = build_federation(digits, skew="1", clients=20, seed=0)
    for selector in ("afl", "fedsae"):
        lockstep = lockstep_of(*_variants(selector))
        expected = _losses_by_hand(lockstep, federation)
        before = expected.copy()
        model_bytes = 4 * sum(v[0].numel() for v in lockstep.parameters.values())
        for round_ in range(3):
            (record,) = lockstep.advance()
            cohort = list(record.cohort)
            after = _losses_by_hand(lockstep, federation)
            if selector == "afl":
                expected[cohort] = before[cohort]
                assert record.bytes_up == 5 * (model_bytes + 4) + (20 * 4 if round_ == 0 else 0)
            known = lockstep._members[0].selector.state()["client.loss"]
            assert np.allclose(known, expected, rtol=1e-4), (selector, round_)
            if selector == "fedsae":
                # Heard when the next round begins.
                expected[cohort] = after[cohort]
            before = after


def test_a_client_whose_update_is_not_finite_is_left_out_and_reported(digits):
    damaged = digits.x_train.astype(np.float32)
    federation = build_federation(digits, skew="1", clients=20, seed=0)
    # Finite, but not what a layer makes of it.
    damaged[federation.partition.of(7)[0]] = 1e38
    broken = dataclasses.replace(digits, x_train=damaged)
    broken.__dict__.update(_by_channel=digits._by_channel)
    everyone = dataclasses.replace(SMALL, selector="fedavg", cohort=20)
    lockstep = lockstep_of(everyone, dataset=broken)
    (record,) = lockstep.advance()
    assert record.left_out == (7,)
    assert all(values.isfinite().all() for values in lockstep.parameters.values())


def test_workload_prediction_drops_clients_that_cannot_afford_their_task():
    config = dataclasses.replace(SMALL, selector="fedsae:workload=ira", rounds=8)
    _, records = _parameters_after([config], 8)
    left_out = [r.left_out for (r,) in records]
    assert any(left_out)
    assert all(set(out) <= set(r.cohort) for out, (r,) in zip(left_out, records, strict=True))


def test_updates_that_are_asked_for_are_those_of_local_training():
    config = dataclasses.replace(SMALL, selector="divfl")
    lockstep = lockstep_of(dataclasses.replace(config, seed=1), config)
    before = {name: values[1].clone() for name, values in lockstep.parameters.items()}
    updates = lockstep._updates_of(lockstep._members[1], np.array([3, 4]))
    everyone = lockstep_of(dataclasses.replace(config, selector="fedavg", cohort=20))
    everyone.round = lockstep.round - 1
    everyone.advance()
    other = lockstep_of(config)
    mean = other._updates_of(other._members[0], np.arange(20)).mean(0)
    moved = torch.cat([(everyone.parameters[n][0] - before[n]).flatten() for n in before])
    assert updates.shape == (2, len(moved))
    assert np.allclose(mean, moved, atol=1e-5), "equal clients: the average moves by the mean"
    lockstep.advance()
    assert lockstep.round == 1


def test_evaluation_is_on_the_stratified_subset_between_exact_rounds(digits):
    config = dataclasses.replace(SMALL, selector="fedavg", eval_samples=100, eval_every=2, rounds=5)
    lockstep = lockstep_of(config)
    subset = lockstep._data.subset[1]
    assert len(subset) == 100
    assert np.bincount(subset).min() >= 9
    records = [lockstep.advance()[0] for _ in range(5)]
    assert [r.train_score is not None for r in records] == [False, True, False, True, True]
    for record, samples in ((records[3], 100), (records[4], len(digits.y_train))):
        right = record.train_score * samples
        assert right == pytest.approx(round(right), abs=1e-6), "not a share of these samples"


def test_a_stopped_simulation_goes_on_where_it_was(tmp_path):
    configs = _variants("dp3s", "clustered", "fedsae", seeds=(0, 1))
    configs = [dataclasses.replace(config, rounds=7) for config in configs]
    with Store(tmp_path / "whole") as whole, Store(tmp_path / "parts") as parts:
        assert run(configs, whole)
        rounds_done = []
        for stops in (2, 3, 9):
            seen = []
            finished = run(
                configs, parts, report=seen.append, stop=lambda s=seen, n=stops: len(s) >= n - 1
            )
            rounds_done.append(len(seen))
        assert finished
        assert sum(rounds_done) == 7, "no round is done twice"
        for config in configs:
            for one, two in zip(whole.records(config.key), parts.records(config.key), strict=True):
                assert without_times(one) == without_times(two)
    assert not list((tmp_path / "parts" / "checkpoints").iterdir())


def test_finished_runs_are_not_done_again(tmp_path):
    configs = _variants("fedavg", seeds=(0, 1))
    with Store(tmp_path) as store:
        run(configs[:1], store)
        seen = []
        run(configs, store, report=seen.append)
        assert seen[-1].total == 3


def test_a_cohort_larger_than_a_files_clients_is_refused(tmp_path):
    path = tmp_path / "three.npz"
    np.savez(path, x=np.random.rand(6, 4), y=[0, 1, 0, 1, 0, 1], client=[0, 0, 1, 1, 2, 2])  # noqa: NPY002
    with Store(tmp_path) as store, pytest.raises(CohortSizeError, match="3 clients"):
        run([RunConfig(dataset=str(path), cohort=5)], store)


def test_a_users_file_is_trained_on(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 120)
    x = rng.normal(size=(120, 5)) + 3 * np.eye(3, 5)[y]
    path = tmp_path / "own.npz"
    np.savez(path, x=x, y=y, client=[f"c{i % 8}" for i in range(120)])
    config = RunConfig(dataset=str(path), cohort=4, rounds=30, lr=0.3)
    with Store(tmp_path) as store:
        run([config], store)
        (stored,) = store.configs()
        last = store.records(stored.key)[-1]
    assert last.train_score > 0.9
    assert last.test_score is None


def test_selectors_have_heard_of_a_round_when_it_is_over():
    class Late:
        """Computes nothing before it is asked for the result."""

        def submit(self, function, *arguments):
            return SimpleNamespace(result=lambda: function(*arguments))

    lockstep = lockstep_of(RunConfig(clients=20, cohort=4, rounds=3, selector="clustered"))
    lockstep._threads = Late()
    chosen = set()
    for _ in range(2):
        (record,) = lockstep.advance()
        chosen.update(record.cohort)
        selector = lockstep._members[0].selector
        assert set(np.flatnonzero(selector._known())) == chosen
