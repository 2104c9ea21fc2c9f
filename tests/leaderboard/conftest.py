"""A small file of published runs, really run, and a rule of one's own."""

import dataclasses
import sys
from pathlib import Path

import pytest
from running import run

from fedcohort.leaderboard.conditions import conditions_of
from fedcohort.leaderboard.published import Published, write_published
from fedcohort.simulation import RunConfig, Store
from fedcohort.simulation.scores import Target

sys.path.append(str(Path(__file__).parents[2] / "studies"))

SELECTORS = ("fedavg", "match", "dp3s", "ward", "kcenter", "gemd-oracle")
SETTINGS = ({"skew": "1"}, {"skew": "0.5", "dropout": 0.3})
SMALL = RunConfig(dataset="digits", clients=20, cohort=5, rounds=6, epochs=3, lr=0.3)
TARGET = Target(0.3)


def small_runs():
    return [
        dataclasses.replace(SMALL, selector=selector, seed=seed, **setting)
        for setting in SETTINGS
        for selector in SELECTORS
        for seed in (0, 1, 2)
    ]


@pytest.fixture(scope="session")
def board(tmp_path_factory):
    """Six selectors, two conditions and three seeds, in a store."""
    with Store(tmp_path_factory.mktemp("board")) as store:
        assert run(small_runs(), store)
        yield store


@pytest.fixture(scope="session")
def conditions():
    return conditions_of(small_runs(), {config.key: TARGET for config in small_runs()})


@pytest.fixture(scope="session")
def published(board, conditions, tmp_path_factory):
    path = tmp_path_factory.mktemp("published") / "published.npz"
    with open(path, "wb") as file:
        write_published(file, conditions, board)
    return Published(path)


@pytest.fixture
def as_package(published, monkeypatch):
    """Let the small file stand in for the one that comes with the package."""
    monkeypatch.setattr("fedcohort.leaderboard.challenge.Published", lambda: published)
    return published
