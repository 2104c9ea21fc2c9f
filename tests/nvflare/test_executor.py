"""What a site answers, without a network."""

import pathlib
import types
from typing import Any

import numpy as np
import pytest
import torch
from nvflare.apis.fl_constant import ReturnCode
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.scaffold import Scaffold

from fedcohort.adapters.introductions import Limits
from fedcohort.errors import RefusedReplyError
from fedcohort.nvflare import (
    LOSS_TASK,
    PROFILE_TASK,
    CohortSelection,
    QueryExecutor,
    TorchQueryExecutor,
)
from fedcohort.nvflare.messages import query, read_introduction, read_loss
from fedcohort.privacy import Promise
from fedcohort.profiles import fc1_profiles, output_gradients
from fedcohort.selection import Need

SITE = types.SimpleNamespace(get_identity_name=lambda: "site-1")
LOADER = """
import torch

def load(site):
    assert site == "site-1"
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(2))
    return model, [(x[:5], torch.arange(5) % 3), (x[5:], torch.arange(4) % 3)]
"""


def ask(executor: QueryExecutor, task: str, wants: Any, params: Any) -> Any:
    reply = executor.execute(task, FLModelUtils.to_shareable(query(wants, params)), SITE, None)
    if reply.get_return_code() != ReturnCode.OK:
        return reply.get_return_code()
    model = FLModelUtils.from_shareable(reply)
    model.meta["client_name"] = "site-1"
    return model


@pytest.fixture
def loader(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FEDCOHORT_ANSWERS", str(tmp_path / "answers"))
    (tmp_path / "loader.py").write_text(LOADER)
    return f"{tmp_path / 'loader.py'}:load"


def server_params() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"0.weight": (6, 4), "0.bias": (6,), "2.weight": (3, 6), "2.bias": (3,)}
    return {n: rng.normal(size=shape).astype(np.float32) for n, shape in shapes.items()}


def test_a_torch_site_answers_with_the_servers_model(loader: str) -> None:
    executor, params = TorchQueryExecutor(loader), server_params()
    reply = ask(executor, PROFILE_TASK, [Need.PROFILE], params)
    said = read_introduction(reply, [Need.PROFILE], Limits(), {})
    assert (said.name, said.size) == ("site-1", 9)
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(2))
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    net.load_state_dict({n: torch.from_numpy(v) for n, v in params.items()})
    expected = fc1_profiles(net, x, torch.arange(9), torch.tensor([9]))[0]
    np.testing.assert_allclose(said.vectors[Need.PROFILE], expected.numpy(), rtol=1e-5)
    y = torch.cat([torch.arange(5) % 3, torch.arange(4) % 3])
    everything = torch.arange(9), torch.tensor([9])
    agreed = output_gradients(net, x, y, *everything).agreements.item()
    assert said.agreement == pytest.approx(agreed, rel=1e-5)
    loss = read_loss(ask(executor, LOSS_TASK, [Need.LOSS], params), Limits())
    with torch.no_grad():
        whole = torch.nn.functional.cross_entropy(net(x), y)
    assert loss == pytest.approx(float(whole), rel=1e-5)


def test_a_private_profile_is_drawn_once_and_losses_stay_at_home(loader: str) -> None:
    pytest.importorskip("dp_accounting")
    first, again = (
        ask(TorchQueryExecutor(loader, epsilon=8), PROFILE_TASK, [Need.PROFILE], server_params())
        for _ in range(2)
    )
    np.testing.assert_array_equal(first.params["profile"], again.params["profile"])
    assert first.metrics.keys() == {"num-examples"}
    assert ask(TorchQueryExecutor(loader, epsilon=8), LOSS_TASK, [Need.LOSS], {}) == (
        ReturnCode.TASK_UNSUPPORTED
    )


def test_a_private_profile_can_hide_the_client_as_a_whole(
    loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dp_accounting")
    monkeypatch.setattr("fedcohort.profiles.private.unpredictable_normal", np.ones)
    by_sample, whole = (
        ask(
            TorchQueryExecutor(loader, epsilon=8, protects=protects),
            *(PROFILE_TASK, [Need.PROFILE], server_params()),
        )
        for protects in ("sample", "client")
    )
    size = by_sample.metrics["num-examples"]
    added = whole.params["profile"] - by_sample.params["profile"]
    expected = Promise(8, protects="client").noise(size) - Promise(8).noise(size)
    np.testing.assert_allclose(added, expected, rtol=1e-5)


def test_a_private_profile_of_another_layer_is_another_answer(loader: str) -> None:
    pytest.importorskip("dp_accounting")
    lengths = [
        len(
            ask(
                TorchQueryExecutor(loader, layer=layer, epsilon=8),
                *(PROFILE_TASK, [Need.PROFILE], server_params()),
            ).params["profile"]
        )
        for layer in (None, "2")
    ]
    assert lengths == [6, 3]


def test_losses_of_models_in_floats_that_numpy_has_not_are_told(loader: str) -> None:
    params = {n: torch.from_numpy(v).bfloat16() for n, v in server_params().items()}
    exact, rounded = (
        read_loss(ask(TorchQueryExecutor(loader), LOSS_TASK, [Need.LOSS], given), Limits())
        for given in (server_params(), params)
    )
    assert rounded == pytest.approx(exact, rel=0.05)


def test_only_what_is_written_is_answered() -> None:
    class Shy(QueryExecutor):
        def size(self, _: Any) -> int:
            return 3

    reply = ask(Shy(), PROFILE_TASK, [], {"w": np.zeros(2)})
    assert read_introduction(reply, [], Limits(), {}).size == 3
    with pytest.raises(RefusedReplyError, match="its profile is missing"):
        read_introduction(reply, [Need.PROFILE], Limits(), {})
    assert ask(Shy(), PROFILE_TASK, [Need.PROFILE], {}) == ReturnCode.TASK_UNSUPPORTED
    assert ask(Shy(), "fedcohort_other", [], {}) == ReturnCode.TASK_UNKNOWN


def test_other_workflows_take_the_mixin() -> None:
    class CohortScaffold(CohortSelection, Scaffold):
        pass

    made = CohortScaffold(selector="match", num_clients=2, num_rounds=3)
    assert made.num_rounds == 3
    assert made.sample_clients.__func__ is CohortSelection.sample_clients
