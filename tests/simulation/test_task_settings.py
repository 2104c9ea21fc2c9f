"""What is learned, by which loss, judged by what: as a run's settings say."""

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from running import lockstep_of
from torch import nn

from fedcohort import simulate
from fedcohort.errors import InvalidInputError, InvalidParameterError, UnknownNameError
from fedcohort.federation import load_dataset
from fedcohort.simulation import RunConfig
from fedcohort.simulation.execution.runner import prepare_study
from fedcohort.simulation.study import study_of_runs

FEW = {"clients": 4, "cohort": 2, "rounds": 1, "selector": "fedavg", "skew": "iid"}


@pytest.fixture
def table(tmp_path):
    """A file of rows with two labels, told by the sign of the first column."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    path = tmp_path / "table.npz"
    np.savez(
        path, x=x, y=(x[:, 0] > 0).astype(np.int64), x_test=x, y_test=(x[:, 0] > 0).astype(int)
    )
    return path


def prepared(*configs):
    return prepare_study(study_of_runs(configs), device="cpu").study.configs


def test_a_file_is_read_for_the_task_that_is_asked_for(table):
    assert load_dataset(str(table)).task == "classification"
    facts = {}
    for task in ("classification", "binary", "regression"):
        config = RunConfig(dataset=str(table), task=task, **FEW)
        facts[task] = lockstep_of(config).facts()[0]["score"]
    assert facts == {"classification": "accuracy", "binary": "accuracy", "regression": "R²"}


def test_a_named_data_set_has_one_task():
    assert load_dataset("digits", task="classification").task == "classification"
    with pytest.raises(InvalidInputError, match="digits is made for classification: leave the"):
        prepared(RunConfig(task="regression", **FEW))


def test_auroc_is_the_share_of_pairs_in_order(table):
    config = RunConfig(dataset=str(table), task="binary", score="AUROC", **FEW)
    lockstep = lockstep_of(config)
    (record,) = lockstep.advance()
    x, y = lockstep._data.test
    model = {name: values[0] for name, values in lockstep.parameters.items()}
    logits = torch.func.functional_call(lockstep._model.eval(), model, (x,)).flatten()
    pairs = logits[y == 1][:, None] > logits[y == 0]
    assert record.test_score == pytest.approx(pairs.double().mean().item(), abs=1e-4)
    assert lockstep.facts()[0]["score"] == "AUROC"


def test_a_score_that_the_task_has_not_is_refused_first(table):
    given = RunConfig(dataset=str(table), **FEW)
    with pytest.raises(InvalidParameterError, match="score of the run is 'AUROC'"):
        prepared(given, RunConfig(dataset=str(table), score="AUROC", **FEW))


LOSS = """
import torch.nn.functional as F
SCALE = {scale}
def scaled(outputs, targets):
    return SCALE * F.cross_entropy(outputs, targets, reduction="none")
def mean(outputs, targets):
    return F.cross_entropy(outputs, targets)
nothing = None
"""


@pytest.fixture
def losses(tmp_path):
    """A file with losses, which can be written anew."""

    def write(scale):
        path = tmp_path / f"losses{scale}.py"
        path.write_text(LOSS.format(scale=scale))
        return path

    return write


def test_a_loss_by_reference_is_descended_along(losses):
    half = lockstep_of(RunConfig(lr=0.2, loss=f"{losses(0.5)}:scaled", **FEW))
    whole = lockstep_of(RunConfig(lr=0.1, **FEW))
    first = {name: values.clone() for name, values in whole.parameters.items()}
    half.advance()
    whole.advance()
    for name, values in half.parameters.items():
        assert torch.allclose(values, whole.parameters[name], atol=1e-6), name
        assert not torch.equal(values, first[name])


def test_its_source_is_part_of_the_key(losses):
    path = losses(1.0)
    config = RunConfig(loss=f"{path}:scaled", **FEW)
    (before,) = prepared(config)
    assert prepared(config)[0].key == before.key != config.key
    path.write_text(LOSS.format(scale=3.0))
    assert prepared(config)[0].key != before.key


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("hubert", UnknownNameError, "did you mean 'huber'"),
        ("{}:nothing", InvalidParameterError, "is not callable: give a function"),
        ("{}:missing", InvalidParameterError, "defines no 'missing'"),
        ("{}:mean", InvalidInputError, "return one loss per sample"),
    ],
)
def test_what_is_no_loss_is_refused_in_one_sentence(losses, name, error, message):
    with pytest.raises(error, match=message):
        prepared(RunConfig(**FEW), RunConfig(loss=name.format(losses(1.0)), **FEW))


def halved(outputs, targets, by=2.0):
    """Return the cross-entropy, divided."""
    return F.cross_entropy(outputs, targets, reduction="none") / by


def test_python_takes_functions_modules_and_partials():
    given = {
        "function": halved,
        "partial": functools.partial(halved, by=4.0),
        "other partial": functools.partial(halved, by=8.0),
        "module": nn.CrossEntropyLoss(reduction="none"),
        "other module": nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1),
        "closure": _over(3.0),
        "other closure": _over(5.0),
    }
    options = {k: v for k, v in FEW.items() if k != "selector"}
    keys = {}
    for name, loss in given.items():
        results = simulate(loss=loss, selectors=["fedavg"], progress=False, **options)
        keys[name] = results._configs[0].key
        assert len(results.rounds) == 2
    assert len(set(keys.values())) == len(given)


def _over(by):
    def loss(outputs, targets):
        return halved(outputs, targets, by)

    return loss
