"""The client of `flower_peer.py`, in a module of its own so that Ray's workers can import it.

Its task lies in the folder that $FEDCOHORT_TASK names.
"""

import functools
import os

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import Task, train_client

from fedcohort.flower import profile_query

app = ClientApp()


@functools.cache
def task():
    torch.set_num_threads(1)
    return Task.load(os.environ["FEDCOHORT_TASK"])


@app.train()
def fit(message, context):
    told = message.content["config"]
    if "slot" in told:
        samples = task().order[told["server-round"] - 1, told["slot"]]
    else:
        samples = own_samples(context)
    model = task().make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train_client(model, task().x[samples], task().y[samples], task().batch, task().lr)
    metrics = MetricRecord({"num-examples": len(samples), "train_loss": 0.0})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


def own_samples(context):
    """Divide the data evenly over the nodes."""
    size = task().order.shape[2]
    start = int(context.node_config["partition-id"]) * size
    return torch.arange(start, start + size)


def load(context):
    samples = own_samples(context)
    pairs = torch.utils.data.TensorDataset(task().x[samples], task().y[samples])
    return task().make_model(), torch.utils.data.DataLoader(pairs, batch_size=task().batch)


profile_query(app, load)
