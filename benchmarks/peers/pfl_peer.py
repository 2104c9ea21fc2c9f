"""pfl-research's simulator on a task: one of several processes, which reduce over gloo.

PFL_WORKER_RANK=0 PFL_WORKER_ADDRESSES=127.0.0.1:P,127.0.0.1:P python pfl_peer.py FOLDER
"""

import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDatasetBase
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from task import Task


class Schedule(FederatedDatasetBase):
    """The task's cohorts, divided over the processes."""

    def __init__(self, task):
        super().__init__()
        self._task, self._rounds = task, iter(task.order)

    def __next__(self):
        raise NotImplementedError

    def get_cohort(self, _size):
        here = pytorch_ops.distributed
        for samples in next(self._rounds)[here.global_rank :: here.world_size]:
            yield Dataset([self._task.x[samples], self._task.y[samples]]), 0


class Clock(TrainingProcessCallback):
    def __init__(self):
        self.times = [time.perf_counter()]

    def after_central_iteration(self, *_, **__):
        self.times.append(time.perf_counter())
        return False, Metrics()


def main():
    folder = Path(sys.argv[1])
    task = Task.load(folder)
    model = task.make_model()
    model.loss = lambda x, y: F.cross_entropy(model(x), y)
    model.metrics = lambda _x, y: {"samples": Weighted(len(y), 1)}
    wrapped = PyTorchModel(
        model,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
    )
    rounds, cohort = task.order.shape[:2]
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=Schedule(task), val_data=Schedule(task)),
        model=wrapped,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=task.lr, local_batch_size=task.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=task.batch),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    if pytorch_ops.distributed.global_rank == 0:
        seconds = [b - a for a, b in zip(clock.times, clock.times[1:], strict=False)]
        torch.save((seconds, model.state_dict()), folder / "pfl.pt")


if __name__ == "__main__":
    main()
