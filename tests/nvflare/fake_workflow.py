"""An NVFlare workflow without a network: what `CohortSelection` is put before, with sites that
answer in this process."""

import dataclasses
import pathlib
import types
from collections.abc import Callable
from typing import Any

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.base_fedavg import _get_num_steps_weight

from fedcohort.nvflare import LOSS_TASK, PROFILE_TASK, CohortSelection
from fedcohort.nvflare.messages import introduction, wanted
from fedcohort.selection import Need


@dataclasses.dataclass
class Site:
    """A client: what it says of itself, and how it trains."""

    size: float
    profile: Any = None
    train: Callable[[dict[str, Any], int], FLModel | None] | None = None
    loss: float | None = None
    tags: tuple[str, ...] = ()
    agreement: Any = None

    def answer(self, task: str, request: FLModel) -> FLModel | None:
        if task == PROFILE_TASK:
            asked = wanted(request)
            vectors = {Need.PROFILE: self.profile} if Need.PROFILE in asked else {}
            reply = introduction(1, vectors, self.tags, self.agreement)
            reply.metrics["num-examples"] = self.size
            return reply
        if task == LOSS_TASK:
            return FLModel(params={}, metrics={"loss": self.loss})
        train = self.train or (lambda params, _: moved(params, 1.0))
        return train(request.params, request.current_round)


def moved(params: dict[str, Any], by: Any, **meta: Any) -> FLModel:
    """Return a result of training that changed every array by `by`."""
    return FLModel(
        params_type=ParamsType.FULL, params={n: v + by for n, v in params.items()}, meta=meta
    )


class FakeFedAvg:
    """The steps of NVFlare's FedAvg, one after another."""

    def __init__(
        self, *, sites: dict[str, Site], folder: pathlib.Path, num_clients: int, num_rounds: int,
        width: int = 3, ignore_result_error: bool = False,
    ) -> None:  # fmt: skip
        assert ignore_result_error
        self.sites = sites
        self.folder = folder
        self.num_clients, self.num_rounds, self.start_round = num_clients, num_rounds, 0
        self.current_round = 0
        self.task_name = "train"
        self.model = FLModel(params_type=ParamsType.FULL, params={"w": np.zeros(width)})
        self.engine = types.SimpleNamespace(
            get_clients=lambda: [types.SimpleNamespace(name=name) for name in self.sites]
        )
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def get_run_dir(self) -> str:
        return str(self.folder)

    def run(self) -> None:
        model = self.model
        for number in range(self.start_round, self.start_round + self.num_rounds):
            self.current_round = number
            model.current_round = self.current_round
            heard: list[FLModel] = []
            cohort = self.sample_clients(self.num_clients)
            self.send_model("train", model, cohort, None, 0, heard.append)
            total = sum(_get_num_steps_weight(r) for r in heard)
            mean = {
                name: sum(r.params[name] * (_get_num_steps_weight(r) / total) for r in heard)
                for name in (model.params if heard else ())
            }
            # As NVFlare does: what the first result is, all of them count as.
            kind = heard[0].params_type if heard else ParamsType.FULL
            model = self.update_model(model, FLModel(params=mean, params_type=kind))
        self.model = model

    def send_model_and_wait(
        self, task: str, data: FLModel, targets: list[str], _: Any = None, timeout: int = 0
    ) -> list[FLModel]:
        assert timeout > 0, "a dead site would be waited for without end"
        self.asked.append((task, tuple(targets)))
        results = []
        for name in targets:
            answer = self.sites[name].answer(task, data)
            if answer is not None:
                answer.meta["client_name"] = name
                results.append(answer)
        return results

    def send_model(
        self, task: str, data: FLModel, targets: list[str], _: Any, timeout: int, callback: Any
    ) -> None:
        for result in FakeFedAvg.send_model_and_wait(self, task, data, targets, None, timeout):
            callback(result)

    def update_model(self, model: FLModel, aggregated: FLModel) -> FLModel:
        whole = FLModel(params_type=ParamsType.FULL, params=dict(model.params))
        return FLModelUtils.update_model(whole, aggregated)


class CohortFake(CohortSelection, FakeFedAvg):
    pass
