"""Jobs for the tests: CohortFedAvg over the clients beside this file."""

import numpy as np
from digits_client import Answers, Trainer
from nvflare.job_config.api import FedJob

from fedcohort.nvflare import QUERY_TASKS, CohortFedAvg



class DigitsFedAvg(CohortFedAvg):
    """Starts from zeros; a job's configuration cannot hold arrays."""

    def load_model(self):
        from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

        params = {"w": np.zeros((64, 10), np.float32), "b": np.zeros(10, np.float32)}
        return FLModel(params_type=ParamsType.FULL, params=params)


def make_job(folder, *, clients, hang_in_round=0, name="digits", **settings):
    job = FedJob(name=name, min_clients=clients)
    job.to_server(DigitsFedAvg(persistor_id="", **settings))
    job.to_clients(Answers(str(folder)), tasks=list(QUERY_TASKS))
    job.to_clients(Trainer(str(folder), hang_in_round), tasks=["train"])
    return job
