"""NVFlare's workflows without a network: `CohortSelection` before them, and sites that answer at
once in this process."""

import contextlib
import dataclasses
import pathlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_common.workflows.scaffold import Scaffold

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


class InThisProcess:
    """What NVFlare's workflows need of a network, a job and its files; sites answer at once.

    Results arrive in the order of `sites`.
    """

    def __init__(
        self,
        *args: Any,
        sites: dict[str, Site],
        folder: pathlib.Path,
        width: int = 3,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.sites = sites
        self.folder = folder
        self.engine = types.SimpleNamespace(
            get_clients=lambda: [types.SimpleNamespace(name=name) for name in self.sites]
        )
        self.fl_ctx, self.abort_signal = FLContext(), Signal()
        self.model = FLModel(params_type=ParamsType.FULL, params={"w": np.zeros(width)})
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.saved: list[dict[str, Any]] = []

    def get_run_dir(self) -> str:
        return str(self.folder)

    def fire_event(self, *_: Any) -> None:
        """Nobody listens."""

    def save_model(self, model: FLModel) -> None:
        self.saved.append(dict(model.params))

    def get_num_standing_tasks(self) -> int:
        return 0

    def send_model_and_wait(
        self, task: str, data: FLModel, targets: list[str], _: Any = None, timeout: int = 0
    ) -> list[FLModel]:
        return list(self._answers(task, data, targets, timeout))

    def send_model(
        self, task: str, data: FLModel, targets: list[str], _: Any, timeout: int, callback: Any
    ) -> None:
        for result in self._answers(task, data, targets, timeout):
            # NVFlare logs what goes wrong.
            with contextlib.suppress(Exception):
                callback(result)

    def _answers(
        self, task: str, data: FLModel, targets: list[str], timeout: int
    ) -> Iterator[FLModel]:
        assert timeout > 0, "a dead site would be waited for without end"
        self.asked.append((task, tuple(targets)))
        for name, site in self.sites.items():
            if name in targets and (answer := site.answer(task, data)) is not None:
                answer.meta["client_name"] = name
                yield answer


class CohortFake(CohortSelection, InThisProcess, FedAvg):
    """FedAvg whose network and files alone are not NVFlare's."""


class CohortFakeScaffold(CohortSelection, InThisProcess, Scaffold):
    """Scaffold whose network and files alone are not NVFlare's."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._global_ctrl_weights = {n: np.zeros_like(v) for n, v in self.model.params.items()}
