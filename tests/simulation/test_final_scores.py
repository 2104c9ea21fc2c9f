"""The final model by client and by class, against the same counted by hand."""

import dataclasses
import sqlite3

import numpy as np
import pandas as pd
import pytest
import torch
from running import lockstep_of, run
from store_contents import contents

from fedcohort import simulate
from fedcohort.api import Results
from fedcohort.federation import Dataset, build_federation, load_dataset
from fedcohort.metrics import worst_share
from fedcohort.report.export import TABLES, export
from fedcohort.report.html import write_report
from fedcohort.report.summary import summarise
from fedcohort.simulation import RunConfig, Store
from fedcohort.simulation.merging import merge

SMALL = RunConfig(clients=12, cohort=4, rounds=2, skew="0.5", selector="fedavg")


def test_each_client_is_measured_on_its_own_samples_and_each_class_on_the_test_part():
    lockstep = lockstep_of(SMALL)
    for _ in range(2):
        lockstep.advance()
    dataset = load_dataset("digits")
    federation = build_federation(dataset, skew="0.5", clients=12, seed=0)
    model = {name: values[0] for name, values in lockstep.parameters.items()}

    def right(data):
        outputs = torch.func.functional_call(lockstep._model.eval(), model, (data[0],))
        return (outputs.argmax(1) == data[1]).double().numpy()

    by_kind = {"client": [], "class": []}
    for score in lockstep.final_scores(0):
        by_kind[score.kind].append(score)
    train, test = right(lockstep._data.train), right(lockstep._data.test)
    assert [s.number for s in by_kind["client"]] == list(range(12))
    for score in by_kind["client"]:
        own = federation.partition.of(score.number)
        assert (score.part, score.samples) == ("train", len(own))
        assert score.score == pytest.approx(train[own].mean(), abs=1.5 / len(own))
    assert [s.number for s in by_kind["class"]] == list(range(10))
    for score in by_kind["class"]:
        of_class = dataset.y_test == score.number
        assert (score.part, score.samples) == ("test", of_class.sum())
        assert score.score == pytest.approx(test[of_class].mean(), abs=1.5 / of_class.sum())


def natural(task="classification", **more):
    """Return samples of three clients; the test samples are of two others."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    targets = {"regression": x[:, :1].copy(), "multilabel": (x[:, :2] > 0)}.get(task, y)
    return Dataset(
        "natural",
        x,
        targets,
        x[:40],
        targets[:40],
        classes=1 if task == "regression" else 2,
        inputs="table",
        task=task,
        client=np.arange(90) % 3,
        client_names=("a", "b", "c"),
        test_client=np.arange(40) % 2,
        test_client_names=("d", "e"),
        **more,
    )


def test_test_clients_are_measured_on_their_own_samples():
    config = RunConfig(dataset="natural", skew="natural", cohort=2, rounds=1, selector="fedavg")
    lockstep = lockstep_of(config, dataset=natural())
    lockstep.advance()
    clients = [s for s in lockstep.final_scores(0) if s.kind == "client"]
    assert [(s.part, s.number, s.samples) for s in clients] == [
        *(("train", n, 30) for n in range(3)),
        *(("test", n, 20) for n in range(2)),
    ]


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_where_samples_have_no_one_class_there_are_clients_alone(task):
    config = RunConfig(dataset="natural", skew="natural", cohort=2, rounds=1, selector="fedavg")
    lockstep = lockstep_of(config, dataset=natural(task))
    lockstep.advance()
    assert {s.kind for s in lockstep.final_scores(0)} == {"client"}


def test_scores_are_stored_with_finished_runs_and_merged(tmp_path):
    with Store(tmp_path / "one") as store:
        run([SMALL], store, stop=lambda: True)
        assert store.final_scores(SMALL.key, "client") == []
        run([SMALL], store)
        found = store.final_scores(SMALL.key, "client")
        lockstep = lockstep_of(SMALL)
        for _ in range(2):
            lockstep.advance()
        assert found == [s for s in lockstep.final_scores(0) if s.kind == "client"]
        with Store(tmp_path / "two") as other:
            merge(other, tmp_path / "one")
            assert other.final_scores(SMALL.key, "client") == found
            assert contents(other.folder)["final_scores"] == contents(store.folder)["final_scores"]


def test_a_store_of_the_format_before_is_readable(tmp_path):
    with Store(tmp_path) as store:
        run([SMALL], store)
        path = store.path
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE final_scores")
        db.execute("PRAGMA user_version = 3")
    with Store(tmp_path) as store:
        assert store.final_scores(SMALL.key, "client") == []
        (summary,) = summarise(store, 0.9)
        assert summary.served == ()
        assert "Who is served" not in write_report(store, tmp_path / "r.html", 0.9).read_text()
    assert Results.load(tmp_path).clients.empty


def test_results_exports_and_summaries_say_who_is_served_worst(tmp_path):
    results = simulate(
        selectors=["fedavg", "dp3s"],
        seeds=(0, 1),
        clients=12,
        cohort=4,
        rounds=2,
        skew="0.5",
        progress=False,
        out=tmp_path,
    )
    clients, classes = results.clients, results.classes
    assert len(clients) == 2 * 2 * 12
    assert set(classes.part) == {"test"}
    assert len(classes) == 2 * 2 * 10
    assert list(clients.columns) == [
        *("label", "selector", "seed", "part", "client", "name", "samples", "accuracy", "loss")
    ]
    assert clients.name.isna().all()
    own = clients[(clients.selector == "dp3s") & (clients.seed == 1)]
    with Store(tmp_path) as store:
        served = {s.label: s.served for s in summarise(store, 0.9)}["dp3s"]
        assert [s.part for s in served] == ["train"]
        by_seed = [
            worst_share(clients[(clients.selector == "dp3s") & (clients.seed == seed)].accuracy)
            for seed in (0, 1)
        ]
        assert served[0].worst_decile == pytest.approx(np.mean(by_seed))
        export(store, tmp_path / "tables")
        page = write_report(store, tmp_path / "report.html", 0.9).read_text()
    assert own.accuracy.nsmallest(2).mean() == pytest.approx(by_seed[1])
    assert "Who is served" in page
    assert "<dt>profiles read from</dt><dd>outputs of fc1</dd>" in page
    for table, rows in (("clients", 48), ("classes", 40)):
        lines = (tmp_path / "tables" / f"{table}.csv").read_text().splitlines()
        assert len(lines) == rows + 1
        assert lines[0].startswith("run,")
    assert list(TABLES) == ["rounds", "runs", "summary", "clients", "classes"]


def test_clients_have_their_names_in_both_parts(tmp_path):
    data = dataclasses.replace(natural(), test_client_names=("b", "d"))
    results = simulate(
        dataset=data,
        selectors=["fedavg", "match"],
        cohort=2,
        rounds=1,
        out=tmp_path,
        progress=False,
    )
    rows = [("train", n, name) for n, name in enumerate("abc")]
    rows += [("test", 0, "b"), ("test", 1, "d")]
    clients = results.clients
    assert [*zip(clients.part, clients.client, clients.name, strict=True)] == 2 * rows
    with Store(tmp_path) as store:
        (path,) = export(store, tmp_path / "c.csv", "clients")
        # What is written later keeps what was known before.
        federation = store.federation(store.configs()[0])
    assert pd.read_csv(path).name.tolist() == clients.name.tolist()
    assert federation.keys() == {"label_counts", "profiles", "client_names", "test_client_names"}


def test_the_worst_tenth_is_rounded_up_and_leaves_out_what_is_not_known():
    assert worst_share([0.5, 0.1, 0.9]) == 0.1
    assert worst_share(np.arange(20) / 20) == pytest.approx(0.025)
    assert worst_share([None, 0.4, np.nan, 0.6]) == 0.4
    assert worst_share([None, np.nan]) is None


def test_scores_differ_with_the_model():
    lockstep = lockstep_of(SMALL, dataclasses.replace(SMALL, seed=1))
    lockstep.advance()
    first, second = (lockstep.final_scores(r) for r in (0, 1))
    assert [s.loss for s in first] != [s.loss for s in second]
