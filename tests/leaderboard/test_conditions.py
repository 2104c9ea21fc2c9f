import dataclasses
from pathlib import Path

import pytest

from fedcohort.errors import InvalidParameterError, UnknownNameError
from fedcohort.leaderboard.conditions import choose, conditions_of, conditions_of_study
from fedcohort.selection import make_selector
from fedcohort.simulation import RunConfig
from fedcohort.simulation.scores import Target
from fedcohort.simulation.study import read_study

STUDY = Path(__file__).parents[2] / "studies" / "leaderboard.toml"
SIX = ("fedavg", "match", "dp3s", "ward", "kcenter", "oort")


def found(*settings, selectors=SIX, seeds=(0, 1)):
    runs = [
        RunConfig(clients=60, selector=selector, seed=seed, **setting)
        for setting in settings
        for selector in selectors
        for seed in seeds
    ]
    return conditions_of(runs, {config.key: Target(0.8) for config in runs})


def test_the_study_of_the_leaderboard_has_its_conditions():
    conditions = conditions_of_study(read_study(STUDY))
    titles = {c.name: c.title for c in conditions if c.config.dataset == "digits"}
    assert titles == {
        "digits-1": "Digits, ξ = 1",
        "digits-H": "Digits, ξ = H",
        "digits-0.5": "Digits, ξ = 0.5",
        "digits-dirichlet-0.1": "Digits, Dirichlet(0.1)",
        "digits-0.8-unequal": "Digits, ξ = 0.8, unequal sizes",
        "digits-1-dropout": "Digits, ξ = 1, 30 % drop out",
        "digits-1-stragglers": "Digits, ξ = 1, stragglers",
    }
    assert len({c.name for c in conditions}) == len(conditions) >= 21
    assert all(len(c.seeds) >= 5 and "fedavg" in c.selectors for c in conditions)


def test_a_condition_is_told_apart_by_how_it_departs_from_the_first_of_its_name():
    names = [c.name for c in found({"cohort": 10}, {"cohort": 25}, {"skew": "H"})]
    assert names == ["digits-1", "digits-1-cohorts-of-25", "digits-H"]
    longer = found({"cohort": 10, "rounds": 9}, {"cohort": 25, "rounds": 5})
    assert [c.name for c in longer] == ["digits-1", "digits-1-cohorts-of-25"]
    same = found({"rounds": 9}, {"rounds": 5})
    assert [c.name for c in same] == ["digits-1", "digits-1-5-rounds"]
    dropouts = found({"dropout": 0.3}, {"dropout": 0.5})
    assert [c.name for c in dropouts] == ["digits-1-dropout", "digits-1-dropout-dropout-0.5"]
    # A default is said too, where it is what departs.
    often = found({"eval_every": 2}, {"eval_every": 1})
    assert [c.name for c in often] == ["digits-1", "digits-1-evaluated-every-1-round"]


def test_a_condition_keeps_its_name_when_others_come_after_it():
    cohorts = {"cohort": 10, "model": "cnn-small"}, {"cohort": 25, "model": "cnn-small"}
    before, after = found(*cohorts), found(*cohorts, {"cohort": 10, "model": "mlp"})
    assert [c.title for c in before] == ["Digits, ξ = 1", "Digits, ξ = 1, cohorts of 25"]
    assert [c.title for c in after] == [*(c.title for c in before), "Digits, ξ = 1, model mlp"]


def test_the_conditions_of_cifar_have_names_that_say_what_is_hard():
    """With targets for those that have not been run yet."""
    study = read_study(STUDY)
    goals = [dataclasses.replace(p, target=p.target or Target(0.4, "test")) for p in study.parts]
    conditions = conditions_of_study(dataclasses.replace(study, parts=tuple(goals)))
    titles = {c.name: c.title for c in conditions if c.config.dataset == "cifar-10"}
    assert titles == {
        "cifar-10-dirichlet-0.1": "CIFAR-10, Dirichlet(0.1)",
        "cifar-10-dirichlet-0.3": "CIFAR-10, Dirichlet(0.3)",
        "cifar-10-1": "CIFAR-10, ξ = 1",
        "cifar-10-H": "CIFAR-10, ξ = H",
        "cifar-10-dirichlet-0.1-cohorts-of-25": "CIFAR-10, Dirichlet(0.1), cohorts of 25",
        "cifar-10-dirichlet-0.1-dropout": "CIFAR-10, Dirichlet(0.1), 30 % drop out",
        "cifar-10-dirichlet-0.1-stragglers": "CIFAR-10, Dirichlet(0.1), stragglers",
        "cifar-10-dirichlet-0.1-model-resnet8": "CIFAR-10, Dirichlet(0.1), model resnet8",
    }
    assert len({c.name for c in conditions}) == len(conditions)


def test_a_condition_takes_six_rules_with_the_same_seeds_and_fedavg_among_them():
    assert found({}, selectors=SIX[:5]) == []
    assert found({}, selectors=(*SIX[1:], "afl")) == []
    (one,) = found({})
    late = [*one.runs("afl", [0]), *(c for name in SIX for c in one.runs(name))]
    (without,) = conditions_of(late, {config.key: Target(0.8) for config in late})
    assert set(without.selectors) == set(SIX)


def test_runs_without_a_target_are_passed_over():
    runs = [RunConfig(selector=name) for name in SIX]
    assert conditions_of(runs, {}) == []


def test_the_runs_of_a_condition_differ_in_selector_and_seed_alone():
    (one,) = found({"dropout": 0.2})
    mine, *_ = one.runs("hics", [7])
    assert (mine.selector, mine.seed, mine.dropout) == ("hics", 7, 0.2)
    assert mine.selector_revision == make_selector("hics").revision
    assert mine.averaging_revision == 2
    first = {"selector_revision": 1, "averaging_revision": 1}
    assert dataclasses.replace(mine, selector="fedavg", seed=0, **first) == one.config


def test_conditions_are_chosen_by_name_or_data_set():
    conditions = [*found({}, {"skew": "H"}), *found({"dataset": "mnist"})]
    assert [c.name for c in choose(conditions, ["digits-H"])] == ["digits-H"]
    assert len(choose(conditions, ["digits"])) == 2
    assert choose(conditions, ["mnist", "digits-1", "digits"]) == conditions
    with pytest.raises(UnknownNameError, match="no condition 'digts-1': did you mean 'digits-1'"):
        choose(conditions, ["digts-1"])


def test_no_condition_is_refused_in_one_sentence():
    with pytest.raises(InvalidParameterError, match="Name a condition"):
        choose(found({}), [])
