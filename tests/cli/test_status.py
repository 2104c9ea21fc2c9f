"""How far a study is, and how long parts will take that nobody has begun."""

import dataclasses

import pytest

from fedcohort.cli.status import show_status, status_of
from fedcohort.simulation import RunConfig, Store
from fedcohort.simulation.packing import Pack
from fedcohort.simulation.planning import enter_study
from fedcohort.simulation.scores import Target
from fedcohort.simulation.study import Part, Study

RUN = RunConfig(clients=10, cohort=3, rounds=10)


def test_parts_that_nobody_began_get_their_time_from_those_that_were_timed(tmp_path):
    parts = tuple(
        Part(name, (dataclasses.replace(RUN, lr=lr),), Target(0.9))
        for name, lr in (("a", 0.1), ("b", 0.2))
    )
    study = Study("two", parts, "a text")
    with Store(tmp_path) as store:
        enter_study(store, study, lambda runs: [Pack((run,), 10 * run.lr) for run in runs])
        assert [part["seconds_left"] for part in status_of(store)["parts"]] == [None, None]
        store.db.execute("UPDATE groups SET round = 5, seconds = 50 WHERE cost < 1.5")
        found = status_of(store)
    assert [part["seconds_left"] for part in found["parts"]] == [50, 200]
    assert found["seconds_left"] == 250


@pytest.mark.parametrize("width", [50, 60, 100])
def test_every_terminal_shows_whole_words_and_how_far_each_part_is(
    tmp_path, monkeypatch, capsys, width
):
    monkeypatch.setenv("COLUMNS", str(width))
    parts = tuple(
        Part(name, tuple(dataclasses.replace(RUN, lr=lr, seed=seed) for seed in range(3)), None)
        for name, lr in (("one class a client", 0.1), ("milder skews", 0.2))
    )
    with Store(tmp_path) as store:
        enter_study(store, Study("two", parts, "a text"), lambda runs: [Pack(runs, 1.0)])
        store.db.execute("UPDATE groups SET round = 9, rounds = 10")
        show_status(store, json=False)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= width
    assert "…" not in printed
    for name in ("one class a client", "milder skews"):
        (row,) = [line for line in printed.splitlines() if line.startswith(name)]
        assert "0 of 3" in row
        assert "90.0 %" in row
