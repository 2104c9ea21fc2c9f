import dataclasses
import sqlite3

import numpy as np

from fedcohort.simulation import RoundRecord, RunConfig, Store
from fedcohort.simulation.groups import group_states, groups_of, part_states
from fedcohort.simulation.packing import Pack
from fedcohort.simulation.planning import enter_study
from fedcohort.simulation.scores import Target
from fedcohort.simulation.study import Part, Study, study_of_runs

RUNS = [RunConfig(seed=seed, rounds=3) for seed in range(4)]
FEDERATION = {"label_counts": np.ones((2, 2)), "profiles": np.ones((2, 5))}


def in_pairs(configs):
    return [Pack(tuple(configs[i : i + 2]), 1.0) for i in range(0, len(configs), 2)]


def test_runs_keep_the_group_they_were_packed_into(store):
    enter_study(store, study_of_runs(RUNS), in_pairs)
    before = group_states(store)
    again = enter_study(store, study_of_runs(RUNS[::-1]), in_pairs)
    assert (again.added, again.known) == (0, 4)
    assert group_states(store) == before
    more = [*RUNS, RunConfig(seed=9, rounds=3)]
    assert enter_study(store, study_of_runs(more), in_pairs).added == 1
    assert [group.runs for group in group_states(store)] == [2, 2, 1]
    assert group_states(store)[:2] == before


def test_the_unfinished_groups_of_some_runs_are_found(store):
    enter_study(store, study_of_runs(RUNS), in_pairs)
    first, second = (group.name for group in group_states(store))
    assert groups_of(store, RUNS) == {first, second}
    assert groups_of(store, RUNS[1:2]) == {first}
    assert groups_of(store, [RunConfig(seed=9)]) == frozenset()
    store.db.execute("UPDATE groups SET round = rounds WHERE grp = ?", (first,))
    assert groups_of(store, RUNS) == {second}, "nothing is left to do of the other"


def test_a_study_that_changed_adds_runs_and_keeps_those_it_does_not_name(store):
    first = Study("s", (Part("a", tuple(RUNS[:3]), Target(0.9)),), "first")
    second = Study("s", (Part("a", tuple(RUNS[2:]), Target(0.8, "test")),), "second")
    assert not enter_study(store, first, in_pairs).changed
    entered = enter_study(store, second, in_pairs)
    assert dataclasses.asdict(entered) == {
        "added": 1,
        "known": 1,
        "unnamed": 2,
        "done": 0,
        "changed": True,
    }
    named, unnamed = part_states(store)
    assert (named.part, named.runs, named.target) == ("a", 2, Target(0.8, "test"))
    assert (unnamed.part, unnamed.runs) == ("", 2)
    assert store.targets() == {config.key: Target(0.8, "test") for config in RUNS[2:]}


def test_finished_runs_are_counted(store):
    for run in RUNS[:2]:
        store.begin(run, {}, FEDERATION)
        store.save({run.key: [RoundRecord(round=3)]}, done=run is RUNS[0])
    entered = enter_study(store, study_of_runs(RUNS), in_pairs)
    assert (entered.added, entered.known, entered.done) == (3, 1, 1)


def test_targets_of_the_format_before_are_of_the_training_score(tmp_path):
    with Store(tmp_path) as store:
        enter_study(store, study_of_runs(RUNS, Target(0.9)), in_pairs)
    with sqlite3.connect(tmp_path / "results.sqlite") as db:
        db.execute("ALTER TABLE parts DROP COLUMN target_on")
        db.execute("PRAGMA user_version=4")
    db.close()
    with Store(tmp_path) as store:
        assert store.targets() == {config.key: Target(0.9, "train") for config in RUNS}
        tested = Study("tested", (Part("a", tuple(RUNS), Target(0.5, "test")),), "text")
        enter_study(store, tested, in_pairs)
        assert {part.target for part in part_states(store)} == {Target(0.9), Target(0.5, "test")}
