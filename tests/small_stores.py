"""Small stores, really run, that the tests of reports and of studies' figures look at."""

import dataclasses
import shutil

import pytest
from running import run

from fedcohort.simulation import RunConfig, Store

SELECTORS = ("dp3s", "fedavg")
SEEDS = (0, 1, 2)
SMALL = RunConfig(dataset="digits", skew="1", clients=20, cohort=5, rounds=4, epochs=3, lr=0.3)


def small_runs(**changes):
    return [
        dataclasses.replace(SMALL, selector=selector, seed=seed, **changes)
        for selector in SELECTORS
        for seed in SEEDS
    ]


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """Two selectors, three seeds, four rounds of digits, really run."""
    with Store(tmp_path_factory.mktemp("small")) as made:
        assert run(small_runs(), made)
        yield made


@pytest.fixture(scope="session")
def varied_store(tmp_path_factory):
    """Two skews, three profiling methods and two initialisations."""
    runs = [c for skew in ("1", "H") for c in small_runs(rounds=2, skew=skew)]
    one = dataclasses.replace(SMALL, selector="dp3s", rounds=2)
    runs += [dataclasses.replace(one, profile=p) for p in ("gradient", "representative-gradient")]
    runs += [
        dataclasses.replace(one, selector=selector, init=init)
        for selector in SELECTORS
        for init in ("xavier-normal", "kaiming-uniform")
    ]
    with Store(tmp_path_factory.mktemp("varied")) as made:
        assert run(runs, made)
        yield made


@pytest.fixture
def copy_runs(tmp_path):
    """Return a function that copies runs into a fresh store, changed on the way."""
    opened = []

    def copy(source, change=lambda config: config, keep=lambda *_: True):
        made = Store(tmp_path / f"copy{len(opened)}")
        opened.append(made)
        for config in source.configs():
            new = change(config)
            if new is None:
                continue
            made.begin(new, source.facts(config.key), source.federation(config))
            kept = [r for r in source.records(config.key) if keep(config, r)]
            made.save({new.key: kept}, done=len(kept) == config.rounds + 1)
        return made

    yield copy
    for made in opened:
        made.close()
        shutil.rmtree(made.folder)
