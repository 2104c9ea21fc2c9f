"""Clients of the test jobs: softmax regression in NumPy, and what it answers to the selector."""

import json
import os
import pathlib
import threading

import numpy as np
from nvflare.apis.executor import Executor
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedcohort.nvflare import QueryExecutor


def load(folder, site):
    """Return the share of the data that site-1, site-2, … hold."""
    with np.load(pathlib.Path(folder) / "data.npz") as file:
        mine = file["owner"] == int(site.rpartition("-")[2]) - 1
        return file["x"][mine], file["y"][mine]


def probabilities(model, x):
    scores = x @ model["w"] + model["b"]
    scores = np.exp(scores - scores.max(1, keepdims=True))
    return scores / scores.sum(1, keepdims=True)


class Answers(QueryExecutor):
    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def size(self, fl_ctx):
        return len(load(self.folder, fl_ctx.get_identity_name())[0])

    def profile(self, params, fl_ctx):  # noqa: ARG002
        return load(self.folder, fl_ctx.get_identity_name())[0].mean(0)

    def loss(self, params, fl_ctx):
        x, y = load(self.folder, fl_ctx.get_identity_name())
        return -np.log(probabilities(params, x)[np.arange(len(y)), y] + 1e-9).mean()


class Trainer(Executor):
    """Trains; in `hang_in_round` the first client leaves its process id and waits to be killed."""

    def __init__(self, folder, hang_in_round=0):
        super().__init__()
        self.folder = folder
        self.hang_in_round = hang_in_round

    def execute(self, task_name, shareable, fl_ctx, abort_signal):  # noqa: ARG002
        request = FLModelUtils.from_shareable(shareable)
        site = fl_ctx.get_identity_name()
        if self.hang_in_round and request.current_round + 1 == self.hang_in_round:
            self._hang_if_first(site)
        model = {name: np.asarray(v) for name, v in request.params.items()}
        x, y = load(self.folder, site)
        for _ in range(20):
            error = probabilities(model, x) - np.eye(10, dtype=np.float32)[y]
            model["w"] = (model["w"] - 0.5 * x.T @ error / len(x)).astype(np.float32)
            model["b"] = (model["b"] - 0.5 * error.mean(0)).astype(np.float32)
        loss = -np.log(probabilities(model, x)[np.arange(len(y)), y] + 1e-9).mean()
        result = FLModel(
            params_type=ParamsType.FULL, params=model, metrics={"train_loss": float(loss)}
        )
        return FLModelUtils.to_shareable(result)

    def _hang_if_first(self, site):
        mark = pathlib.Path(self.folder) / "victim"
        try:
            with mark.open("x") as file:
                file.write(json.dumps({"site": site, "pid": os.getpid(), "parent": os.getppid()}))
        except FileExistsError:
            return
        threading.Event().wait()
