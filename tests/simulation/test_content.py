import dataclasses
import importlib
import sys

import numpy as np
import pytest
from running import run

from fedcohort.federation import load_dataset
from fedcohort.selection import Cohort, FedAvg, Selector
from fedcohort.selection.registry import _registered, register
from fedcohort.simulation import RunConfig, Store
from fedcohort.simulation import content as content_module
from fedcohort.simulation.content import with_content
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.study import study_of_runs

MODEL = """
from torch import nn

class Own(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.fc1 = nn.Linear(64, 8)
        self.fc2 = nn.Linear(8, classes)

    def forward(self, x):
        return self.fc2(self.fc1(x.flatten(1)).relu())
"""


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits")


def save(path, **changes):
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.standard_normal((12, 4)).astype(np.float32),
        "y": np.arange(12) % 2,
        "client": np.arange(12) % 3,
    }
    np.savez(path, **arrays | changes)
    return str(path)


def completed(config, dataset=None):
    materials = Materials(None if dataset is None else {config.dataset: dataset})
    (complete,) = with_content(study_of_runs([config]), materials).configs
    return complete


def test_what_fedcohort_has_itself_adds_nothing(digits):
    for config in (RunConfig(), RunConfig(model="mlp", selector="kcenter:guard=profiles")):
        assert completed(config, digits) == config


@pytest.mark.parametrize(
    "changes",
    [
        {"x": np.ones((12, 4), np.float32)},
        {"y": np.arange(12) % 2 + 1},
        {"client": np.arange(12) // 4},
        {"client": np.array(["a", "b", "c"])[np.arange(12) % 3]},
        {"x_test": np.ones((1, 4), np.float32), "y_test": np.array([1])},
    ],
    ids=["samples", "labels", "clients", "names", "test part"],
)
def test_every_array_of_a_file_is_part_of_the_key(tmp_path, changes):
    config = RunConfig(dataset=save(tmp_path / "my.npz"), cohort=2)
    before = completed(config)
    assert completed(config) == before, "the same content has the same key"
    save(tmp_path / "my.npz", **changes)
    after = completed(config)
    assert after.content != before.content
    assert after.key != before.key
    assert after.federation_key != before.federation_key
    assert after.lockstep_key() != before.lockstep_key()


def test_data_are_hashed_once(tmp_path, monkeypatch):
    config = RunConfig(dataset=save(tmp_path / "my.npz"), cohort=2)
    data = load_dataset(config.dataset)
    first = completed(config, data)

    def fail(*_):
        raise AssertionError("hashed again")

    monkeypatch.setattr(content_module, "_of_arrays", fail)
    assert completed(dataclasses.replace(config, seed=1), data).content == first.content


@pytest.fixture
def own_model(tmp_path, monkeypatch):
    """Return a function that writes a module with a model, and imports it as Python would."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text):
        sys.modules.pop("own_model", None)
        importlib.invalidate_caches()
        (tmp_path / "own_model.py").write_text(text)

    yield write
    sys.modules.pop("own_model", None)


@pytest.mark.parametrize(
    "change",
    [("nn.Linear(64, 8)", "nn.Linear(64, 8, bias=False)"), (".relu()", ".tanh()")],
    ids=["shapes", "code"],
)
def test_a_model_that_changed_is_another(own_model, digits, change):
    config = RunConfig(model="own_model:Own")
    own_model(MODEL)
    before = completed(config, digits)
    assert before.content
    assert completed(config, digits) == before
    # Another length, so that Python does not take the compiled file for this one.
    own_model(MODEL.replace(*change) + "\n# changed\n")
    assert completed(config, digits).key != before.key


def test_a_model_of_a_file_is_read_from_there(tmp_path, own_model, digits):
    own_model(MODEL)
    config = RunConfig(model=f"{tmp_path / 'own_model.py'}:Own")
    before = completed(config, digits)
    assert completed(config, digits) == before
    (tmp_path / "own_model.py").write_text(MODEL.replace("relu", "tanh"))
    assert completed(config, digits).key != before.key


def test_a_trace_that_changed_is_another(tmp_path, digits):
    trace = np.ones((3, 100), np.uint8)
    np.save(tmp_path / "trace.npy", trace)
    config = RunConfig(availability=str(tmp_path / "trace.npy"))
    before = completed(config, digits)
    trace[1, 4] = 0
    np.save(tmp_path / "trace.npy", trace)
    after = completed(config, digits)
    assert after.key != before.key
    assert after.federation_key == before.federation_key
    assert after.lockstep_key() == before.lockstep_key()


def test_the_code_of_a_selector_of_ones_own_is_part_of_the_key(digits, monkeypatch):
    @register("own-rule")
    class OwnRule(Selector):
        def _choose(self, k, available, rng):  # noqa: ARG002
            return Cohort(available[:k], np.ones(k))

    try:
        config = RunConfig(selector="own-rule")
        before = completed(config, digits)
        assert before.selection_content
        assert before.lockstep_key() == config.lockstep_key(), "it trains beside the others"
        monkeypatch.setattr(content_module.Path, "read_text", lambda *_: "another rule")
        assert completed(config, digits).key != before.key
    finally:
        del _registered["own-rule"]


def test_a_rule_that_was_revised_is_another(digits, monkeypatch):
    config = RunConfig(selector="fedavg")
    before = completed(config, digits)
    assert before.key == config.key, "the first revision has the key of the name"
    monkeypatch.setattr(FedAvg, "revision", 2)
    after = completed(config, digits)
    assert after.selector_revision == 2
    assert after.key != before.key
    assert after.federation_key == before.federation_key
    assert completed(RunConfig(selector="ward"), digits).selector_revision == 1


def test_replaced_data_are_trained_anew(tmp_path):
    config = RunConfig(dataset=save(tmp_path / "my.npz"), cohort=2, rounds=2, selector="fedavg")
    with Store(tmp_path / "out") as store:
        for changes in ({}, {}, {"y": np.arange(12) // 6}):
            save(tmp_path / "my.npz", **changes)
            assert run([config], store)
        old, new = store.configs()
        losses = [[r.train_loss for r in store.records(c.key)] for c in (old, new)]
    assert losses[0] != losses[1]
