import numpy as np
import pytest
import torch
from running import lockstep_of, run
from torch import nn

from fedcohort import simulate
from fedcohort.errors import StoreError
from fedcohort.federation import load_dataset
from fedcohort.simulation import RunConfig, Store
from fedcohort.simulation.kept_models import keep_models, read_model
from fedcohort.training.inputs import prepare_inputs

CONFIG = RunConfig(clients=10, cohort=3, rounds=2)


def test_the_model_that_is_kept_is_the_last_one(tmp_path):
    with Store(tmp_path) as store:
        run([CONFIG], store, keep_models=True)
    lockstep = lockstep_of(CONFIG)
    for _ in range(2):
        lockstep.advance()
    kept, expected = read_model(tmp_path, CONFIG.key), lockstep.state_dict(0)
    assert kept.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(kept[name], values)


class Tied(nn.Module):
    """Parameters and buffers under two names each, and a layer under two."""

    def __init__(self, shape, classes):  # noqa: ARG002
        super().__init__()
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)
        self.two.weight = self.one.weight
        self.again = nn.ModuleDict({"a": self.two, "b": self.two})
        self.register_buffer("halves", torch.full((64,), 0.5))
        self.register_buffer("same", self.halves)
        self.out = nn.Linear(64, classes)

    def forward(self, x):
        x = torch.tanh(self.one(x.flatten(1) * self.halves * self.same))
        return self.out(torch.tanh(self.again["b"](x)))


class Counted(nn.Module):
    """BatchNorm and a buffer of whole numbers."""

    def __init__(self, shape, classes):  # noqa: ARG002
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(64), nn.Linear(64, classes)
        self.register_buffer("order", torch.arange(63, -1, -1))

    def forward(self, x):
        return self.out(self.norm(x.flatten(1))[:, self.order])


class Parametrised(nn.Module):
    def __init__(self, shape, classes):  # noqa: ARG002
        super().__init__()
        self.out = nn.utils.parametrizations.weight_norm(nn.Linear(64, classes))

    def forward(self, x):
        return self.out(x.flatten(1))


@pytest.mark.parametrize("factory", [Tied, Counted, Parametrised])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_new_model_takes_what_is_kept_and_scores_as_the_run_did(factory, seed, tmp_path):
    results = simulate(
        model=factory,
        selectors=["fedavg"],
        seeds=range(2),
        clients=10,
        cohort=5,
        rounds=3,
        lr=0.5,
        progress=False,
        out=tmp_path,
    )
    data = load_dataset("digits")
    model = factory(data.x_train.shape[1:], data.classes)
    model.load_state_dict(results.models["fedavg", seed], strict=True)
    x = prepare_inputs(data.x_test, data, standard=True)
    with torch.inference_mode():
        right = model.eval()(x).argmax(1).numpy() == data.y_test
    rounds = results.rounds
    last = rounds[(rounds["seed"] == seed) & (rounds["round"] == 3)]
    assert right.mean() == last.test_accuracy.item()


def test_a_model_that_is_not_there_or_damaged_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"model of run 'abc' .* run it again"):
        read_model(tmp_path, "abc")
    keep_models(tmp_path, {"abc": {"w": np.ones(3)}})
    assert read_model(tmp_path, "abc")["w"].tolist() == [1, 1, 1]
    (path,) = (tmp_path / "models").iterdir()
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(StoreError, match="'abc'"):
        read_model(tmp_path, "abc")
