"""Workers: time limits, shared groups, progress."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from fedcohort.federation import Dataset, load_dataset
from fedcohort.simulation import RunConfig, Store, driver
from fedcohort.simulation.driver import Worker
from fedcohort.simulation.ledger import GroupState, Ledger, Pack
from fedcohort.simulation.packing import packer
from fedcohort.simulation.progress import progress_of, seconds_left
from fedcohort.simulation.study import study_of_runs

CPU = torch.device("cpu")
RUN = RunConfig(clients=10, cohort=3, rounds=50)


@pytest.fixture(scope="module")
def digits():
    return {"digits": load_dataset("digits")}


def test_a_worker_ends_before_its_deadline_with_its_rounds_saved(tmp_path, digits, monkeypatch):
    seconds = itertools.count(0.0, 0.2)
    monkeypatch.setattr(driver.time, "monotonic", lambda: next(seconds))
    with Store(tmp_path) as store:
        ledger = Ledger(store)
        ledger.enter(study_of_runs([RUN]), packer(digits, CPU))
        names = ledger.groups_of([RUN])
        assert not Worker(ledger, digits, CPU, deadline=20.0).work(names)
        assert next(seconds) < 20
        (group,) = ledger.groups()
        assert 0 < group.round < 50
        assert group.round == store.records(RUN.key)[-1].round
        assert not group.holder


def test_two_workers_share_the_groups(tmp_path, digits):
    runs = [dataclasses.replace(RUN, rounds=2, seed=seed) for seed in range(2)]
    with Store(tmp_path) as store:
        mine, other = Ledger(store), Ledger(store)
        mine.enter(study_of_runs(runs), lambda configs: [Pack((c,), 1.0) for c in configs])
        names = mine.groups_of(runs)
        held = other.claim(names)
        waited = []

        def report(progress):
            # The other one gives up as soon as this worker has nothing left but to wait for it.
            if progress.note.startswith("waiting"):
                waited.append(progress)
                other.release(held)

        assert Worker(mine, digits, CPU, report=report).work(names)
        assert [p.done for p in waited] == [2]
        assert all(store.is_done(run.key) for run in runs)


def test_rounds_are_logged_once_they_are_saved(tmp_path, digits):
    run = dataclasses.replace(RUN, rounds=3)
    logged = []
    with Store(tmp_path) as store:
        ledger = Ledger(store)
        ledger.enter(study_of_runs([run]), packer(digits, CPU))

        def log(config, records):
            assert store.records(config.key)[-1] == records[-1]
            logged.extend(record.round for record in records)

        Worker(ledger, digits, CPU, log=log).work(ledger.groups_of([run]))
    assert logged == [0, 1, 2, 3]


def test_groups_hold_whole_seeds_and_keep_within_the_limits(digits):
    runs = [
        dataclasses.replace(RUN, selector=selector, seed=seed)
        for selector in ("dp3s", "fedavg", "clustered")
        for seed in range(20)
    ]
    packs = packer(digits, CPU)(runs)
    assert [len(pack.configs) for pack in packs] == [32, 28]
    assert sorted(c.seed for c in packs[0].configs) == [s // 3 for s in range(32)]
    # Selectors that compare updates come last.
    assert [c.selector == "clustered" for c in packs[0].configs] == [False] * 22 + [True] * 10
    assert packer(digits, CPU)(runs) == packs


def test_large_states_make_small_groups():
    big = RunConfig(clients=1000, cohort=10, dataset="digits", model="cnn", selector="clustered")
    images = np.zeros((2000, 1, 28, 28), np.float32)
    labels = np.arange(2000) % 10
    dataset = Dataset("digits", images, labels, images[:0], labels[:0], 10)
    packs = packer({"digits": dataset}, CPU)([dataclasses.replace(big, seed=s) for s in range(3)])
    assert [len(pack.configs) for pack in packs] == [1, 1, 1]


def _group(name, shape, round_, seconds, rounds=10, cost=1.0, live=None):
    return GroupState(name, 2, rounds, shape, cost, round_, live or round_, seconds, "")


def test_the_time_left_is_measured_by_shape():
    slow, fast = _group("a", "slow", 5, 50.0), _group("b", "fast", 5, 5.0)
    assert seconds_left([_group("c", "slow", 0, 0.0)]) is None
    assert seconds_left([slow, fast]) == 5 * 10 + 5 * 1
    assert seconds_left([slow, fast], workers=2) == 50, "the longest group is not divided"
    unknown = _group("d", "new", 0, 0.0, cost=2.0)
    assert seconds_left([slow, fast, unknown]) == 55 + 10 * 2 * 5.5
    progress = progress_of([slow, dataclasses.replace(fast, live=7)], "digits")
    assert (progress.done, progress.total, progress.seconds_left) == (24, 40, 53)
