import dataclasses
import functools
import importlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from running import run, without_times
from torch import nn

from fedcohort import references
from fedcohort.errors import InvalidInputError
from fedcohort.federation import Dataset, load_dataset
from fedcohort.selection import Cohort, FedAvg, Selector
from fedcohort.selection.registry import _registered, register
from fedcohort.simulation import RunConfig, Store
from fedcohort.simulation import content as content_module
from fedcohort.simulation.content import with_content
from fedcohort.simulation.execution.runner import prepare_study, run_study
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


def completed(config, dataset=None, **objects):
    materials = Materials(None if dataset is None else {config.dataset: dataset}, **objects)
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


CHANGES = {
    "x_train": np.ones((8, 4), np.uint8),
    "y_train": np.arange(8) // 4,
    "x_test": np.ones((4, 4), np.uint8),
    "y_test": np.arange(4) // 2,
    "classes": 3,
    "scale": 2.0,
    "class_names": ("no", "yes"),
    "client": np.arange(8) // 4,
    "client_names": ("a", "c"),
    "task": "binary",
    "inputs": "tokens",
    "test_client": np.arange(4) // 2,
    "test_client_names": ("a", "c"),
}


def test_every_field_of_a_data_set_is_named_here():
    assert [field.name for field in dataclasses.fields(Dataset)] == ["name", *CHANGES]


@pytest.mark.parametrize("field", CHANGES)
def test_every_field_of_a_data_set_is_part_of_the_key(field):
    def content(**changes):
        owners = {"client": np.arange(8) % 2, "test_client": np.arange(4) % 2}
        names = {"client_names": ("a", "b"), "test_client_names": ("a", "b")}
        x, y = np.zeros((8, 4), np.int64), np.arange(8) % 2
        if changes.get("inputs") != "tokens":
            x = x.astype(np.uint8)
        given = {"x_train": x, "y_train": y, "x_test": x[:4], "y_test": y[:4], "classes": 2}
        data = Dataset("mine", **(given | owners | names | changes))
        return content_module._of_data(data)

    assert content() == content()
    assert content(**{field: CHANGES[field]}) != content()


def test_data_are_hashed_once(tmp_path, monkeypatch):
    config = RunConfig(dataset=save(tmp_path / "my.npz"), cohort=2)
    data = load_dataset(config.dataset)
    first = completed(config, data)

    def fail(*_):
        raise AssertionError("hashed again")

    monkeypatch.setattr(content_module, "fingerprint", fail)
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


class Times(nn.Module):
    def __init__(self, outputs, a):
        super().__init__()
        self.layer = nn.Linear(64, outputs)
        self.a, self.noise = a, torch.randn(3)

    def forward(self, x):
        return self.layer(x.flatten(1)) * self.a


def traced(model):
    return torch.jit.trace(model, torch.zeros(2, 1, 8, 8))


def with_scripted_part(model):
    return nn.Sequential(nn.Flatten(), torch.jit.script(model.layer))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "compiled", [torch.jit.script, traced, with_scripted_part, torch.fx.symbolic_trace]
)
def test_a_model_that_torch_compiled_trains_as_it_does_otherwise(tmp_path, digits, compiled):
    config = RunConfig(model="own:make", selector="fedavg", clients=5, cohort=2, rounds=2)
    found = []
    for number, made in enumerate((lambda model: model, compiled, compiled)):
        objects = {"models": {"own:make": lambda _, outputs, made=made: made(Times(outputs, 1.0))}}
        materials = Materials({"digits": digits}, **objects)
        prepared = prepare_study(study_of_runs([config]), device="cpu", materials=materials)
        with Store(tmp_path / str(number)) as store:
            assert run_study(prepared, store)
            (done,) = store.configs()
            records = list(map(without_times, store.records(done.key)))
        found.append((done.key, records))
    assert found[0][1] == found[1][1]
    assert found[0][0] != found[1][0]
    assert found[1] == found[2]


def closed(a):
    return lambda _, outputs: Times(outputs, a)


def with_default(a):
    def make(shape, outputs, a=a):  # noqa: ARG001
        return Times(outputs, a)

    return make


def partial(a):
    return functools.partial(lambda _, outputs, a: Times(outputs, a), a=a)


@pytest.mark.parametrize("made", [closed, with_default, partial])
def test_what_a_factory_holds_is_part_of_the_key(digits, made):
    config = RunConfig(model="own:make")

    def key(a):
        return completed(config, digits, models={"own:make": made(a)}).key

    assert key(0.1) == key(0.1)
    assert key(0.1) != key(3.0)


def test_what_a_factory_reads_is_part_of_the_key_and_the_seed_is_not(digits, tmp_path):
    file = tmp_path / "weights"

    def make(_, outputs):
        model = Times(outputs, 1.0)
        model.a = float(file.read_text())
        return model

    def content(a, **settings):
        file.write_text(a)
        config = RunConfig(model="own:make", **settings)
        return completed(config, digits, models={"own:make": make}).content

    assert content("0.1") == content("0.1", seed=5) == content("0.1", init="xavier-normal")
    assert content("0.1") != content("3")


def test_what_a_loss_holds_is_part_of_the_key(digits):
    def key(held):
        def loss(outputs, targets):
            return nn.functional.cross_entropy(outputs * held[0], targets, reduction="none")

        config = RunConfig(loss="own:loss")
        return completed(config, digits, losses={"own:loss": loss}).key

    assert key([1.0]) == key([1.0])
    assert key([1.0]) != key([2.0])
    with pytest.raises(InvalidInputError, match="what the loss own:loss → held is, of type gen"):
        key(x for x in ())


HELPED = """
from fedcohort import Cohort, Selector
from own_helper import first

class Own(Selector):
    def _choose(self, k, available, rng):
        return self._cohort(first(available, k))
"""


def test_a_selectors_helper_in_another_file_is_part_of_the_key(tmp_path, digits):
    (tmp_path / "own_rule.py").write_text(HELPED)
    keys = []
    try:
        for text in ("available[:k]", "available[:k]", "available[-k:]"):
            (tmp_path / "own_helper.py").write_text(f"def first(available, k): return {text}")
            # As if in a process of its own.
            sys.modules.pop("own_helper", None)
            references._loaded.clear()
            shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
            config = RunConfig(selector=f"{tmp_path / 'own_rule.py'}:Own")
            keys.append(completed(config, digits).key)
    finally:
        sys.modules.pop("own_helper", None)
    assert keys[0] == keys[1] != keys[2]


def test_code_without_a_file_is_run_anew_when_it_changed(tmp_path):
    text = """
import sys, torch
from fedcohort import simulate
from fedcohort.simulation import Store
def loss(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none") * FACTOR
simulate(selectors=["fedavg"], loss=loss, clients=5, cohort=2, rounds=1, progress=False, out="out")
with Store.existing("out") as store:
    print(len(store.configs()))
"""
    found = [
        subprocess.run(
            [sys.executable, "-"],
            input=text.replace("FACTOR", factor),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for factor in ("1", "1", "9")
    ]
    assert [int(runs) for runs in found] == [1, 1, 2]


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
        other = lambda self, k, available, rng: Cohort(available[-k:], np.ones(k))  # noqa: ARG005, E731
        monkeypatch.setattr(OwnRule, "_choose", other)
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


@pytest.mark.parametrize(
    ("settings", "revision"),
    [
        ({"speed_spread": 1.0, "availability": "0.5"}, 1),
        ({"dropout": 0.1}, 2),
        ({"deadline": 2.0}, 2),
        ({"over_selection": 1.5}, 2),
    ],
)
def test_runs_in_which_some_do_not_answer_are_others_since_they_are_averaged_right(
    digits, settings, revision
):
    config = RunConfig(selector="fedavg", **settings)
    after = completed(config, digits)
    assert after.averaging_revision == revision
    assert (after.key == config.key) == (revision == 1)
    assert after.lockstep_key() == config.lockstep_key()


def test_replaced_data_are_trained_anew(tmp_path):
    config = RunConfig(dataset=save(tmp_path / "my.npz"), cohort=2, rounds=2, selector="fedavg")
    with Store(tmp_path / "out") as store:
        for changes in ({}, {}, {"y": np.arange(12) // 6}):
            save(tmp_path / "my.npz", **changes)
            assert run([config], store)
        old, new = store.configs()
        losses = [[r.train_loss for r in store.records(c.key)] for c in (old, new)]
    assert losses[0] != losses[1]
