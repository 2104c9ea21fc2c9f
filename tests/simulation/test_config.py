import dataclasses
import json

import numpy as np
import pytest

from fedcohort.errors import FedcohortError, InvalidParameterError, UnknownNameError
from fedcohort.simulation import RunConfig
from fedcohort.simulation.config import SETTINGS
from fedcohort.specs import parse_spec

# Another valid value of every setting, and what else a run needs to take it.
CHANGED = {
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
    "profile_protects": "client",
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
    "loss": "huber",
    "task": "regression",
    "score": "AUROC",
    "normalisation": "local",
    "optimizer": "adamw",
    "nesterov": True,
    "weight_decay": 0.1,
    "clip": 1.0,
    "lr_decay": "cosine",
    "augment": "flip",
    "content": "0123456789abcdef",
    "selection_content": "fedcba9876543210",
    "selector_revision": 2,
    "averaging_revision": 2,
}
BASES = {
    "profile_delta": RunConfig(profile_epsilon=2.0),
    "profile_protects": RunConfig(profile_epsilon=2.0),
    "nesterov": RunConfig(momentum=0.5),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_decides_the_keys_that_it_declares(name):
    base = BASES.get(name, RunConfig())
    changed = dataclasses.replace(base, **{name: CHANGED[name]})
    declared = SETTINGS[name]
    assert changed.key != base.key
    assert (changed.lockstep_key() != base.lockstep_key()) == declared.lockstep
    assert (changed.federation_key != base.federation_key) == (declared.federation is True)


def test_profiles_that_are_trained_depend_on_the_training():
    base = RunConfig(profile="representative-gradient")
    for name in ("epochs", "batch_size", "lr", "momentum", "proximal"):
        changed = dataclasses.replace(base, **{name: CHANGED[name]})
        assert changed.federation_key != base.federation_key, name
    assert dataclasses.replace(base, rounds=3).federation_key == base.federation_key


PAPER = {"dataset": "mnist", "skew": "H", "selector": "match", "seed": 3, "lr": 0.2}
SLOW = {"dropout": 0.1, "deadline": 2.0, "availability": "0.7", "over_selection": 1.5}


@pytest.mark.parametrize(
    ("settings", "key", "federation"),
    [
        ({}, "44136fa355b3678a", "44136fa355b3678a"),
        (PAPER | {"epochs": 5, "batch_size": 54}, "a7020e9c5eea0f98", "b69e5292fdd2717c"),
        (SLOW, "d745d14d8486160c", "44136fa355b3678a"),
        ({"profile_epsilon": 2.0}, "bdffafef81a27afd", "bdffafef81a27afd"),
        (
            {"profile": "representative-gradient", "epochs": 2.0, "lr": 0.3},
            "98b5fba7f829cd6b",
            "5510cdb9efac11a5",
        ),
    ],
)
def test_keys_are_what_they_were_in_the_first_stores(settings, key, federation):
    config = RunConfig(**settings)
    assert (config.key, config.federation_key) == (key, federation)


# What version 0.1.0 wrote, which ignored some of it.
WRITTEN = (
    '{"availability": "always", "batch_size": null, "clients": 100, "cohort": 10, "dataset":'
    ' "digits", "deadline": null, "dropout": 0.0, "epochs": 1.0, "eval_every": 1, "eval_samples":'
    ' null, "init": "default", "inputs": "standard", "lr": 0.1, "model": "auto", "momentum": 0.0,'
    ' "over_selection": 1.0, "precision": "float32", "profile": "fc1", "profile_delta": 1e-05,'
    ' "profile_epsilon": null, "profile_layer": null, "proximal": 0.0, "reuse": false, "rounds":'
    ' 100, "samples_per_client": null, "seed": 0, "selector": "dp3s", "server": "avg",'
    ' "size_spread": 0.0, "skew": "1", "speed_spread": 0.0}'
)
NPZ = {"dataset": "mine.npz", "cohort": 3}
OTHER_NPZ = {"dataset": "data/mine.npz", "skew": "natural", "clients": 7, "cohort": 3}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({}, "44136fa355b3678a"),
        (NPZ, "df09bfd0545e88e4"),
        (OTHER_NPZ | {"selector": "fedavg"}, "cb2b5bcc354e7397"),
        (NPZ | {"size_spread": 0.5, "skew": "0.8"}, "09dfb22ec38b3619"),
        ({"profile_delta": 1e-6}, "d526e398ad12cb97"),
        ({"profile": "gradient", "profile_layer": "fc2"}, "218fc6794589aa54"),
    ],
)
def test_runs_of_earlier_versions_keep_their_keys(changes, key):
    stored = RunConfig.from_json(json.dumps(json.loads(WRITTEN) | changes))
    assert stored.key == key
    assert RunConfig.from_json(stored.to_json()) == stored


def test_what_is_left_open_depends_on_the_data(tmp_path):
    x, y = np.zeros((4, 2)), np.arange(4) % 2
    np.savez(tmp_path / "mine.npz", x=x, y=y, client=y)
    np.savez(tmp_path / "nobodys.npz", x=x, y=y)
    divided, own = RunConfig(), RunConfig(dataset=str(tmp_path / "mine.npz"), cohort=500)
    nobodys = RunConfig(dataset=str(tmp_path / "nobodys.npz"))
    assert (nobodys.skew, nobodys.clients, nobodys.own_clients) == ("1", 100, False)
    assert (divided.skew, divided.clients, divided.own_clients) == ("1", 100, False)
    assert (own.skew, own.clients, own.own_clients) == ("natural", None, True)
    assert divided == RunConfig(skew="1", clients=100)
    by_hand = RunConfig(dataset="an object", skew="natural")
    assert (by_hand.clients, by_hand.own_clients) == (None, True)


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
        ({"profile_delta": 1e-6}, "profile_delta .* belongs to a profile_epsilon"),
        ({"profile": "gradient", "profile_layer": "fc1"}, "profile_layer .* fc1 profiles"),
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
