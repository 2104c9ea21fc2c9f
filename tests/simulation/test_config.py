import dataclasses

import pytest

from fedcohort.errors import FedcohortError, InvalidParameterError, UnknownNameError
from fedcohort.simulation import RunConfig
from fedcohort.specs import parse_spec


def test_the_key_changes_with_every_field():
    base = RunConfig()
    changed = {
        "dataset": "mnist",
        "skew": "H",
        "clients": 50,
        "cohort": 5,
        "samples_per_client": 7,
        "size_spread": 0.5,
        "reuse": True,
        "selector": "fedavg",
        "rounds": 3,
        "epochs": 2.0,
        "batch_size": 5,
        "lr": 0.2,
        "momentum": 0.5,
        "model": "mlp",
        "init": "xavier-normal",
        "profile": "gradient",
        "profile_layer": "fc2",
        "profile_epsilon": 8.0,
        "profile_delta": 1e-6,
        "inputs": "unit",
        "precision": "bfloat16",
        "proximal": 0.1,
        "server": "avgm",
        "availability": "0.5",
        "dropout": 0.1,
        "speed_spread": 0.5,
        "deadline": 2.0,
        "over_selection": 1.5,
        "eval_every": 2,
        "eval_samples": 100,
        "seed": 1,
    }
    assert changed.keys() == {field.name for field in dataclasses.fields(RunConfig)}
    keys = {dataclasses.replace(base, **{name: value}).key for name, value in changed.items()}
    assert len(keys | {base.key}) == len(changed) + 1


def test_a_config_survives_json():
    config = RunConfig(skew="dirichlet:0.1", batch_size=None, selector="fedsae:beta=0.5")
    assert RunConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("{", "cannot be read"), ("[]", "unknown field"), ('{"colour": 1}', "unknown field 'colour'")],
)
def test_a_config_that_was_not_written_here_is_refused(text, complaint):
    with pytest.raises(InvalidParameterError, match=complaint):
        RunConfig.from_json(text)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"cohort": 101}, "at most the 100 clients"),
        ({"cohort": 0}, "at least 1"),
        ({"lr": float("nan")}, "lr of the run"),
        ({"momentum": 1.0}, "below 1"),
        ({"epochs": 0.0}, "above 0"),
        ({"batch_size": 0}, "batch_size of the run"),
        ({"clients": 2.5}, "whole number"),
        ({"seed": -1}, "seed of the run"),
        ({"init": "zeros"}, "init of the run must be one of"),
        ({"inputs": "raw"}, "'unit', 'standard'"),
        ({"skew": "1.5"}, "0, 1"),
        ({"selector": "fedsae:beta"}, "without a value"),
        ({"dataset": None}, "dataset of the run must be a text"),
        ({"skew": 1}, "skew of the run must be a text"),
        ({"selector": ["dp3s"]}, "selector of the run must be a text"),
        ({"profile_layer": 3}, "a text, or None"),
        ({"profile_epsilon": 0.0}, "above 0"),
        ({"profile_epsilon": 21.0}, "promises nothing"),
        ({"profile_epsilon": 1.0, "profile": "gradient"}, "cannot be made private"),
    ],
)
def test_wrong_values_are_refused_in_one_sentence(wrong, complaint):
    with pytest.raises(FedcohortError, match=complaint) as caught:
        RunConfig(**wrong)
    assert "\n" not in str(caught.value)


def test_unknown_selectors_are_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'fedavg'"):
        RunConfig(selector="fed-avg")


def test_selector_parameters_are_read_as_values():
    name, parameters = parse_spec("x:a=1,b=0.5,c=ira,d=none,e=true")
    assert name == "x"
    assert parameters == {"a": 1, "b": 0.5, "c": "ira", "d": None, "e": True}
    assert RunConfig(selector="fedsae:workload=ira,beta=0.02").make_selector().beta == 0.02
    with pytest.raises(InvalidParameterError, match="workload"):
        RunConfig(selector="fedsae:workload=irra")


def test_the_key_does_not_tell_whole_numbers_of_passes_apart():
    assert RunConfig(epochs=5).key == RunConfig(epochs=5.0).key
    assert RunConfig(deadline=2).key == RunConfig(deadline=2.0).key
