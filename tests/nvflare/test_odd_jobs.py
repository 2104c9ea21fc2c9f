"""Models, sites and workflows that differ from the plain case, as users have them."""

import itertools
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from fake_workflow import CohortFake, CohortFakeScaffold, Site, moved
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AlgorithmConstants

from fedcohort.adapters.checkpoint import Checkpoint
from fedcohort.adapters.introductions import Limits
from fedcohort.errors import InvalidInputError, InvalidParameterError
from fedcohort.nvflare import LOSS_TASK
from fedcohort.nvflare.messages import like, read_change

# A layer with BatchNorm, which counts batches, a mask, a scalar, and a layer behind them.
NORMED = {
    "w": np.ones(3, np.float32),
    "batches": np.array(0),
    "mask": np.array([True, False]),
    "scale": np.array(1, np.float32),
    "bias": np.ones(2, np.float32),
}
CONTROL = AlgorithmConstants.SCAFFOLD_CTRL_DIFF


def sites(count: int = 4, **named: Any) -> dict[str, Site]:
    rng = np.random.default_rng(0)
    return {
        f"site-{i}": Site(10.0, rng.normal(size=4).astype(np.float32), loss=1.0 + i, **named)
        for i in range(count)
    }


def job(
    folder: pathlib.Path,
    there: dict[str, Site],
    model: dict[str, Any] | None = None,
    **settings: Any,
) -> CohortFake:
    given = {"num_clients": 4, "num_rounds": 4, "selector": "match", **settings}
    run = CohortFake(sites=there, folder=folder, **given)
    if model is not None:
        run.model = FLModel(params_type=ParamsType.FULL, params=dict(model))
    return run


def kinds_of(params: dict[str, Any]) -> dict[str, Any]:
    return {name: (type(v), v.dtype, tuple(v.shape)) for name, v in params.items()}


@pytest.mark.parametrize("selector", ["match", "clustered", "hics", "fedavg"])
@pytest.mark.parametrize("result", [ParamsType.FULL, ParamsType.DIFF])
@pytest.mark.parametrize("tensors", [False, True])
def test_sites_are_sent_the_types_of_the_first_model_in_every_round(
    tmp_path: pathlib.Path, selector: str, result: ParamsType, tensors: bool
) -> None:
    cast = torch.from_numpy if tensors else np.asarray
    first = {name: cast(values) for name, values in NORMED.items()}
    heard = []

    def train(params: dict[str, Any], _: int) -> FLModel:
        heard.append(kinds_of(params))
        arrays = {}
        for name, values in params.items():
            before = np.asarray(values) * (result == ParamsType.FULL)
            # One more of everything but flags.
            arrays[name] = cast(np.asarray(before + np.array(1, before.dtype) * (name != "mask")))
        return FLModel(params_type=result, params=arrays)

    run = job(tmp_path, sites(train=train), first, selector=selector)
    run.run()
    assert all(len(summary.trained) == 4 for summary in run.history)
    assert heard == [kinds_of(first)] * 16
    found = run.model.params
    np.testing.assert_allclose(found["w"], [5, 5, 5], rtol=1e-6)
    assert (float(found["scale"]), int(found["batches"])) == (pytest.approx(5), 4)
    assert np.asarray(found["mask"]).tolist() == [True, False]


def test_averages_of_whole_numbers_are_rounded() -> None:
    counts = np.array([2.6, 2.4])
    assert like(np.array([1, 1]), counts).tolist() == [3, 2]
    assert like(torch.tensor([1, 1]), counts).tolist() == [3, 2]
    assert like(np.array([True, True]), np.array([0.6, 0.4])).tolist() == [True, False]


def test_floats_that_numpy_has_not_are_trained_and_resumed(tmp_path: pathlib.Path) -> None:
    first = {"w": torch.ones(3, dtype=torch.bfloat16)}
    for rounds in (2, 4):
        run = job(
            tmp_path, sites(), first, num_rounds=rounds, checkpoint=str(tmp_path / "server.npz")
        )
        run.run()
    assert kinds_of(run.model.params) == kinds_of(first)
    assert run.model.params["w"].tolist() == [5.0, 5.0, 5.0]


@pytest.mark.parametrize("cast", [int, np.int64, np.float32])
def test_steps_weigh_the_same_whoever_answers_first(tmp_path: pathlib.Path, cast: Any) -> None:
    def average(order: tuple[int, ...], steps: list[Any]) -> float:
        there = {
            f"site-{i}": Site(
                10,
                train=lambda p, _, i=i: moved(p, float(i), NUM_STEPS_CURRENT_ROUND=cast(steps[i])),
            )
            for i in order
        }
        run = job(tmp_path, there, num_rounds=1, selector="fedavg")
        run.run()
        return float(run.model.params["w"][0])

    for steps, counted in (
        ([10, 100, 100, 100], [10, 100, 100, 100]),
        # A claim counts as four times the others' upper quartile.
        ([10, 10, 10, 10**9], [10, 10, 10, 40]),
    ):
        expected = np.average(range(4), weights=counted)
        found = [average(order, steps) for order in itertools.permutations(range(4))]
        assert found == pytest.approx([expected] * 24)


@pytest.mark.parametrize(("selector", "added"), [("match", [0, 1, 2, 3]), ("fedavg", [0] * 4)])
def test_results_are_held_back_only_where_steps_count(
    tmp_path: pathlib.Path, selector: str, added: list[int]
) -> None:
    before = []

    def train(params: dict[str, Any], _: int) -> FLModel:
        before.append(run._aggr_helper.get_len())
        return moved(params, 1.0)

    run = job(tmp_path, sites(train=train), selector=selector, num_rounds=1)
    run.run()
    assert before == added


@pytest.mark.parametrize("selector", ["match", "fedavg"])
def test_metrics_that_cannot_be_added_do_not_end_a_job(
    tmp_path: pathlib.Path, selector: str
) -> None:
    there = sites()
    for i, site in enumerate(there.values()):
        site.train = lambda p, _, i=i: FLModel(
            params={"w": p["w"] + 1.0}, metrics={"scores": np.ones(2 + i)}
        )
    run = job(tmp_path, there, selector=selector)
    run.run()
    np.testing.assert_allclose(run.model.params["w"], [4, 4, 4])


@pytest.mark.parametrize(("selector", "seen"), [("oort", 0.5), ("afl", 0.75)])
@pytest.mark.parametrize("cast", [np.float32, np.float16])
def test_losses_may_be_numbers_of_numpy(
    tmp_path: pathlib.Path, selector: str, seen: float, cast: Any
) -> None:
    def train(params: dict[str, Any], _: int) -> FLModel:
        result = moved(params, 1.0)
        result.metrics = {"train_loss": cast(0.5), "received_loss": cast(0.75)}
        return result

    run = job(tmp_path, sites(train=train), selector=selector, num_rounds=1)
    run.run()
    assert run._chooser.state()["client.loss"].tolist() == [seen] * 4


@pytest.mark.parametrize("result", [ParamsType.FULL, ParamsType.DIFF])
def test_what_is_not_averaged_stays_as_it_was(tmp_path: pathlib.Path, result: ParamsType) -> None:
    def train(params: dict[str, Any], _: int) -> FLModel:
        whole = result == ParamsType.FULL
        return FLModel(
            params_type=result, params={n: v * whole + np.ones_like(v) for n, v in params.items()}
        )

    first = {"w": np.zeros(2, np.float32), "head": np.ones(2, np.float32)}
    run = job(tmp_path, sites(train=train), first, exclude_vars="head")
    run.run()
    assert all(len(summary.trained) == 4 for summary in run.history)
    np.testing.assert_allclose(run.model.params["w"], [4, 4])
    np.testing.assert_array_equal(run.model.params["head"], [1, 1])


class OnDisk:
    """A tensor as NVFlare hands it over with `enable_tensor_disk_offload`."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def materialize(self) -> torch.Tensor:
        return self.tensor


@pytest.mark.parametrize("selector", ["match", "fedavg", "clustered"])
@pytest.mark.parametrize("result", [ParamsType.FULL, ParamsType.DIFF])
def test_tensors_on_disk_are_read_and_stay_there(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    selector: str,
    result: ParamsType,
) -> None:
    def train(params: dict[str, Any], _: int) -> FLModel:
        moved_ = params["w"] * (result == ParamsType.FULL) + 1.0
        return FLModel(params_type=result, params={"w": OnDisk(moved_)})

    run = job(tmp_path, sites(train=train), {"w": torch.zeros(3)}, selector=selector)
    add, added = run._aggregate_one_result, []

    def note(model: FLModel) -> bool:
        added.append(type(model.params["w"]))
        return add(model)

    monkeypatch.setattr(run, "_aggregate_one_result", note)
    run.run()
    torch.testing.assert_close(run.model.params["w"], torch.full((3,), 4.0))
    assert added == [OnDisk if result == ParamsType.FULL else torch.Tensor] * 16


def test_sites_of_a_job_that_resumes_are_told_of_all_rounds(tmp_path: pathlib.Path) -> None:
    told = []

    class Planner(Site):
        def answer(self, task: str, request: FLModel) -> FLModel | None:
            if task == "train":
                told.append((request.current_round, request.total_rounds))
            return super().answer(task, request)

    there = {name: Planner(site.size, site.profile) for name, site in sites().items()}
    for rounds in (2, 4):
        told.clear()
        run = job(
            tmp_path,
            there,
            selector="divfl",
            num_rounds=rounds,
            checkpoint=str(tmp_path / "server.npz"),
        )
        run.run()
    assert set(told) == {(2, 4), (3, 4)}


def test_a_job_with_no_rounds_left_saves_the_model(tmp_path: pathlib.Path) -> None:
    for _ in range(2):
        run = job(tmp_path, sites(), num_rounds=2, checkpoint=str(tmp_path / "server.npz"))
        run.run()
    (saved,) = run.saved
    np.testing.assert_allclose(saved["w"], [2, 2, 2])


def controlled(params: dict[str, Any], _: int) -> FLModel:
    return moved(params, 1.0, **{CONTROL: {n: np.ones_like(v) for n, v in params.items()}})


@pytest.mark.parametrize("selector", ["match", "fedavg"])
def test_a_round_without_enough_results_moves_nothing_in_scaffold(
    tmp_path: pathlib.Path, selector: str
) -> None:
    there = sites()
    # Nobody answers in round 1, one site in round 2, and all of them later.
    for i, site in enumerate(there.values()):
        first = 1 if i == 3 else 2
        site.train = lambda p, n, first=first: controlled(p, n) if n >= first else None
    run = CohortFakeScaffold(
        sites=there, folder=tmp_path, selector=selector, num_clients=4, num_rounds=2, min_cohort=2
    )
    run.run()
    assert [len(summary.trained) for summary in run.history] == [0, 1]
    np.testing.assert_array_equal(run.model.params["w"], np.zeros(3))
    np.testing.assert_array_equal(run._global_ctrl_weights["w"], np.zeros(3))
    run.start_round, run.num_rounds = 6, 2
    run.run()
    np.testing.assert_allclose(run.model.params["w"], np.full(3, 2.0))
    np.testing.assert_allclose(run._global_ctrl_weights["w"], np.full(3, 2.0))


@pytest.mark.parametrize("workflow", [CohortFake, CohortFakeScaffold])
@pytest.mark.parametrize("selector", ["match", "fedavg", "pow-d"])
def test_a_round_in_which_the_job_is_aborted_is_done_again(
    tmp_path: pathlib.Path, workflow: Any, selector: str
) -> None:
    def train(params: dict[str, Any], number: int) -> FLModel | None:
        if number == 1:
            run.abort_signal.trigger(True)
        return controlled(params, number) if number == 0 else None

    run = workflow(
        sites=sites(train=train),
        folder=tmp_path,
        selector=selector,
        num_clients=3,
        num_rounds=5,
        checkpoint=str(tmp_path / "server.npz"),
    )
    # The task that was out is gone when it is looked for again.
    standing = [1]
    run.get_num_standing_tasks = lambda: (
        len(standing) and int(run.abort_signal.triggered and standing.pop())
    )
    run.run()
    saved = Checkpoint.load(tmp_path / "server.npz")
    assert saved is not None
    assert (saved.round, len(run.history)) == (1, 1)


@pytest.mark.parametrize("selector", ["hics", "pow-d"])
def test_own_weights_count_where_all_sizes_are_equal(tmp_path: pathlib.Path, selector: str) -> None:
    there = sites(5)
    for i, site in enumerate(there.values()):
        site.loss = 9.0 - i
        steps = 10 if i else 20
        site.train = lambda p, _, i=i, n=steps: moved(p, float(i), NUM_STEPS_CURRENT_ROUND=n)
    run = job(tmp_path, there, selector=selector, num_rounds=1)
    run.run()
    trained = [int(name[-1]) for name in run.history[0].trained]
    assert 0 in trained
    assert run.model.params["w"][0] == pytest.approx(np.mean(trained))


# The first of those chosen has a tenth of the weight.
A_TENTH = """
from fedcohort import FedAvg


class ATenth(FedAvg):
    def _choose(self, k, rows, rng):
        return self._cohort(rows[:k], [0.1] + [0.9 / (k - 1)] * (k - 1))
"""


def test_own_weights_count_of_a_rule_that_is_told_nothing(tmp_path: pathlib.Path) -> None:
    there = sites()
    for i, site in enumerate(there.values()):
        site.train = lambda p, _, i=i: moved(p, float(i == 0), NUM_STEPS_CURRENT_ROUND=10)
    rule = tmp_path / "a_tenth.py"
    rule.write_text(A_TENTH)
    run = job(tmp_path, there, selector=f"{rule}:ATenth", num_rounds=1)
    run.run()
    assert run.model.params["w"][0] == pytest.approx(0.1)


def test_running_statistics_are_no_part_of_an_update() -> None:
    sent = {"w": np.ones(3, np.float32), "norm.running_var": np.ones(3, np.float32)}
    reply = FLModel(params_type=ParamsType.FULL, params={n: v + 1 for n, v in sent.items()})
    assert read_change(reply, sent, Limits(), changes=True).tolist() == [1, 1, 1]


@pytest.mark.parametrize("selector", ["hics", "match:guard=updates"])
def test_a_model_without_an_output_bias_is_refused_where_that_is_read(
    tmp_path: pathlib.Path, selector: str
) -> None:
    run = job(tmp_path, sites(), {"w": np.ones((3, 4), np.float32)}, selector=selector)
    with pytest.raises(InvalidInputError, match=r"last array of this one has shape \[3, 4\]"):
        run.run()


def test_a_site_that_failed_to_tell_its_loss_is_asked_again(tmp_path: pathlib.Path) -> None:
    there = sites()
    told = there["site-0"].answer

    def fail(task: str, request: FLModel) -> FLModel | None:
        return None if task == LOSS_TASK and run.current_round < 2 else told(task, request)

    there["site-0"].answer = fail  # type: ignore[method-assign]
    there["site-0"].loss = 9.0
    run = job(tmp_path, there, selector="pow-d:d=4", num_clients=1)
    run.run()
    assert all("site-0" in names for task, names in run.asked if task == LOSS_TASK)
    assert ["site-0" in summary.cohort for summary in run.history] == [False, False, True, True]


@pytest.mark.parametrize("given", [None, 0])
def test_a_job_must_know_how_many_train(tmp_path: pathlib.Path, given: int | None) -> None:
    with pytest.raises(InvalidParameterError, match="num_clients of CohortSelection must be"):
        job(tmp_path, sites(), num_clients=given)
