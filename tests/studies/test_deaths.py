import csv

import numpy as np
import pytest
from deaths import deaths, main
from drawing import run_script

from fedcohort.simulation import RoundRecord, RunConfig, Store

# Training accuracies of three seeds by selector and learning rate; three seeds of four classes.
CURVES = {
    ("match", 0.1): ((0.2, 0.9, 0.9), (0.2, 0.25, 0.38), (0.3, 0.1, 0.6)),
    ("match", 0.2): ((0.2, 0.9, 0.26), (0.2, 0.26, 0.37), (0.2, 0.3, 0.95)),
    ("fedavg", 0.2): ((0.2, 0.2, 0.2), (0.9, 0.2, 0.0), (0.2, 0.25, 0.374)),
}


@pytest.fixture
def lived(tmp_path):
    """A store of runs over four classes; `fedavg` has a fourth seed, which is not finished."""
    with Store(tmp_path / "lived") as store:
        for (selector, lr), curves in CURVES.items():
            for seed, curve in enumerate(curves):
                enter(store, curve, selector=selector, lr=lr, seed=seed)
        enter(store, (0.1, 0.1), selector="fedavg", lr=0.2, seed=3)
        yield store


def enter(store, curve, **settings):
    config = RunConfig(clients=2, cohort=1, rounds=2, **settings)
    facts = {"clients": 2, "device": "CPU", "train_evaluated_on": 10}
    store.begin(config, facts, {"label_counts": np.full((2, 4), 5)})
    records = [RoundRecord(round=r, train_score=a, cohort=(0,)) for r, a in enumerate(curve)]
    store.save({config.key: records}, done=len(curve) == 3)


def test_runs_that_end_below_one_and_a_half_times_guessing_died(lived):
    found = {(row["selector"], row["lr"]): (row["seeds"], row["died"]) for row in deaths(lived)}
    assert found == {("match", 0.1): (3, 0), ("match", 0.2): (3, 2), ("fedavg", 0.2): (3, 3)}


def test_the_table_names_the_setting(lived, tmp_path):
    main([str(lived.folder), "--csv", str(tmp_path / "deaths.csv")])
    with open(tmp_path / "deaths.csv") as file:
        rows = list(csv.DictReader(file))
    wanted = {"dataset": "digits", "skew": "1", "lr": "0.2", "selector": "match", "rounds": "2"}
    assert [row for row in rows if wanted.items() <= row.items()] == [
        row for row in rows if row["died"] == "2"
    ]


def test_without_finished_runs_nothing_is_written(tmp_path, capsys):
    with Store(tmp_path / "begun") as store:
        enter(store, (0.1, 0.1), selector="fedavg", seed=0)
    with pytest.raises(SystemExit) as end:
        run_script(lambda: main([str(tmp_path / "begun")]))
    assert end.value.code == 2
    assert "no finished run" in capsys.readouterr().err
    assert not (tmp_path / "begun/figures").exists()
