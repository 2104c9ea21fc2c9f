"""Jobs for the tests: CohortFedAvg over the clients beside this file."""

import dataclasses
import json
import pathlib

import numpy as np
from digits_client import Answers, Trainer
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.job_config.api import FedJob

from fedcohort.nvflare import QUERY_TASKS, CohortFedAvg


class DigitsFedAvg(CohortFedAvg):
    """Starts from zeros, since a job's configuration holds no arrays, and tells of each round."""

    def load_model(self):
        params = {"w": np.zeros((64, 10), np.float32), "b": np.zeros(10, np.float32)}
        return FLModel(params_type=ParamsType.FULL, params=params)

    def update_model(self, model, aggr_result):
        updated = super().update_model(model, aggr_result)
        with pathlib.Path(self.checkpoint).with_name("progress.jsonl").open("a") as file:
            file.write(json.dumps(dataclasses.asdict(self.history[-1])) + "\n")
        return updated


def make_job(folder, *, clients, hang_in_round=0, name="digits", **settings):
    job = FedJob(name=name, min_clients=clients)
    job.to_server(DigitsFedAvg(persistor_id="", **settings))
    job.to_clients(Answers(str(folder)), tasks=list(QUERY_TASKS))
    job.to_clients(Trainer(str(folder), hang_in_round), tasks=["train"])
    return job
