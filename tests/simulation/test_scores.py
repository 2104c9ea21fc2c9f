"""Each task is judged by its own score, and stores that called all of them accuracy still open."""

import shutil
import sqlite3

import numpy as np
import pytest
import torch
from torch import nn

from fedcohort.federation import Dataset
from fedcohort.simulation import RoundRecord, RunConfig, Store
from fedcohort.simulation.execution.runner import prepare_study, run_study
from fedcohort.simulation.logs import open_logs
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.merging import merge
from fedcohort.simulation.packing import packer
from fedcohort.simulation.scores import score_column, score_of
from fedcohort.simulation.study import study_of_runs

SMALL = {"skew": "iid", "clients": 6, "cohort": 3, "rounds": 3, "epochs": 2, "lr": 0.1}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 5)).astype(np.float32)


def dataset(task, y, *, x=X, classes):
    return Dataset(
        name=task,
        x_train=x[:80],
        y_train=y[:80],
        x_test=x[80:],
        y_test=y[80:],
        classes=classes,
        task=task,
    )


def regression(targets):
    y = X @ RNG.normal(size=(5, targets)).astype(np.float32)
    return dataset("regression", y, classes=targets)


def tokens():
    x = RNG.integers(0, 6, size=(120, 8))
    return dataset("next-token", (x[:, -1] + 1) % 6, x=x, classes=6)


def run(given, folder, **changes):
    """Run a data set, and return the run's store, its configuration and its rounds."""
    config = RunConfig(dataset="given", **SMALL | changes)
    prepared = prepare_study(
        study_of_runs([config]), device="cpu", materials=Materials({"given": given})
    )
    store = Store(folder)
    assert run_study(prepared, store)
    (done,) = store.configs()
    return store, done, store.records(done.key)


@pytest.mark.parametrize(
    ("given", "task", "score"),
    [
        (regression(1), "regression", "R²"),
        (dataset("multilabel", (X[:, :3] > 0).astype(np.uint8), classes=3), "multilabel", "F1"),
        (tokens(), "next-token", "accuracy"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_says_what_it_is_judged_by(given, task, score, tmp_path):
    store, config, records = run(given, tmp_path)
    with store:
        facts = store.facts(config.key)
        assert (facts["task"], score_of(facts)) == (task, score)
        assert all(r.train_score <= 1 and r.test_score <= 1 for r in records)
        assert all(0 <= r.gemd <= 2 for r in records[1:]), "over tenths, label sets and tokens"


def test_r2_is_that_of_the_targets_spread(tmp_path):
    given = regression(1)
    store, _, records = run(given, tmp_path)
    store.close()
    spread = float(np.var(given.y_test.astype(np.float64)))
    assert records[-1].test_score == pytest.approx(1 - records[-1].test_loss / spread, abs=1e-5)


def test_without_label_groups_there_is_no_gemd(tmp_path):
    store, config, records = run(regression(2), tmp_path, selector="match")
    with store:
        assert store.federation(config)["label_counts"].shape == (6, 0)
    assert [r.gemd for r in records] == [None] * 4
    assert records[-1].train_score > records[0].train_score


@pytest.mark.parametrize(
    ("score", "column"), [("accuracy", "train_accuracy"), ("R²", "train_r2"), ("F1", "train_f1")]
)
def test_columns_are_called_by_the_score(score, column):
    assert score_column("train", score) == column


def test_runs_of_before_are_judged_by_accuracy():
    assert score_of({"clients": 3}) == "accuracy"


def test_logs_call_a_score_by_its_name(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with open_logs([f"tensorboard:{tmp_path}"]) as log:
        log(RunConfig(rounds=1), [RoundRecord(1, train_score=0.5, test_score=0.25)], "R²")
    (folder,) = tmp_path.iterdir()
    events = EventAccumulator(str(folder)).Reload()
    assert events.Scalars("train_r2")[0].value == 0.5
    assert events.Scalars("test_r2")[0].value == 0.25


def as_format_2(folder):
    with sqlite3.connect(folder / "results.sqlite") as db:
        for part in ("train", "test"):
            db.execute(f"ALTER TABLE rounds RENAME COLUMN {part}_score TO {part}_accuracy")
        db.execute("PRAGMA user_version=2")
    db.close()


def test_a_store_that_said_accuracy_opens_and_merges(tmp_path):
    store, config, records = run(tokens(), tmp_path / "old")
    store.close()
    as_format_2(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "older")
    with Store.existing(tmp_path / "old") as opened:
        assert opened.records(config.key) == records
    with Store(tmp_path / "new") as fresh:
        assert merge(fresh, tmp_path / "older").added == 1
        assert fresh.records(config.key) == records


def test_measuring_a_model_does_not_change_it():
    class Normal(nn.Sequential):
        def __init__(self, *_):
            super().__init__(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    materials = Materials({"given": regression(1)}, {"normal": Normal})
    config = RunConfig(dataset="given", model="normal", **SMALL)
    before = {name: values.clone() for name, values in materials.model(config).state_dict().items()}
    packer(materials, torch.device("cpu"))([config])
    after = materials.model(config).state_dict()
    assert all(torch.equal(after[name], values) for name, values in before.items())
