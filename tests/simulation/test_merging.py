import dataclasses

import pytest
from running import run

from fedcohort.cli.status import status_of
from fedcohort.errors import StoreError
from fedcohort.simulation import RunConfig, Store
from fedcohort.simulation.groups import group_states, part_states
from fedcohort.simulation.merging import merge
from fedcohort.simulation.packing import Pack
from fedcohort.simulation.planning import enter_study
from fedcohort.simulation.scores import Target
from fedcohort.simulation.study import Part, Study

RUN = RunConfig(clients=8, cohort=3, rounds=2)
RUNS = tuple(dataclasses.replace(RUN, seed=seed) for seed in range(3))
STUDY = Study(
    "s", (Part("a", RUNS[:2], Target(0.9)), Part("b", RUNS[2:], Target(0.8, "test"))), "text"
)


def alone(configs):
    return [Pack((config,), 1.0) for config in configs]


@pytest.fixture
def stores(tmp_path):
    with Store(tmp_path / "here") as here, Store(tmp_path / "there") as there:
        yield here, there


def test_finished_runs_come_and_are_not_done_again(stores):
    here, there = stores
    for store in stores:
        enter_study(store, STUDY, alone)
    run(RUNS[:1], here)
    run(RUNS[:2], there)
    merged = merge(here, there.folder)
    assert (merged.added, merged.known) == (1, 1)
    assert here.records(RUNS[1].key) == there.records(RUNS[1].key)
    assert "label_counts" in here.federation(RUNS[1])
    assert [group.done for group in group_states(here)] == [True, True, False]
    assert [(part.part, part.done) for part in part_states(here)][:2] == [("a", 2), ("b", 0)]
    seen = []
    assert run(RUNS, here, report=seen.append)
    assert seen[-1].total == 2
    assert merge(here, there.folder).added == 0


def test_stores_of_the_first_format_are_read_and_merged_by_name(stores):
    here, there = stores
    run(RUNS[:1], there)
    known = there.records(RUNS[0].key)
    for statement in ("ALTER TABLE rounds DROP COLUMN elapsed", "PRAGMA user_version=1"):
        there.db.execute(statement)
    assert merge(here, there.folder).added == 1
    # That format knew no simulated time.
    expected = [dataclasses.replace(record, elapsed=0.0) for record in known]
    assert here.records(RUNS[0].key) == expected
    with Store(there.folder) as again:
        assert again.records(RUNS[0].key) == expected


def test_a_new_folder_gets_everything_that_is_finished(stores):
    here, there = stores
    enter_study(there, STUDY, alone)
    run(RUNS[1:], there)
    assert merge(here, there.folder).added == 2
    assert [config.seed for config in here.configs()] == [1, 2]
    assert here.targets() == there.targets()
    assert [(part.part, part.runs, part.done) for part in part_states(here)][:2] == [
        ("a", 2, 1),
        ("b", 1, 1),
    ]


def test_groups_that_were_packed_differently_are_done_when_their_runs_are(stores):
    here, there = stores
    enter_study(here, STUDY, lambda configs: [Pack(tuple(configs), 1.0)])
    enter_study(there, STUDY, alone)
    run(RUNS[:2], there)
    merge(here, there.folder)
    assert [group.done for group in group_states(here)] == [False]
    run(RUNS[2:], there)
    merge(here, there.folder)
    assert [group.done for group in group_states(here)] == [True]


def test_runs_that_came_without_their_group_count_as_done(stores):
    here, there = stores
    enter_study(here, Study("s", STUDY.parts[:1], "a alone"), alone)
    enter_study(there, STUDY, lambda configs: [Pack(tuple(configs), 1.0)])
    run(RUNS, there)
    merge(here, there.folder)
    assert not set(RUNS[2:]) & set(configs_in_groups(here)), "or the group would count it"
    (part,) = [part for part in part_states(here) if part.part == "b"]
    assert (part.runs, part.done, part.rounds_done, part.rounds) == (1, 1, 2, 2)
    assert status_of(here)["finished"]


def configs_in_groups(store):
    rows = store.db.execute("SELECT config FROM members").fetchall()
    return [RunConfig.from_json(text) for (text,) in rows]


def test_a_folder_is_not_merged_into_itself_nor_nothing(stores, tmp_path):
    with pytest.raises(StoreError, match="into itself"):
        merge(stores[0], stores[0].folder)
    with pytest.raises(StoreError, match="no results in"):
        merge(stores[0], tmp_path / "nothing")
