"""A client whose mods look at every message, as a user's own mods do."""

import time

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import arrays_size_mod

from app_mods.data import share
from app_mods.task import train
from fedcohort.flower import answer_queries


def timed(message: Message, context: Context, call_next) -> Message:
    """Add how long training took to the metrics of the reply."""
    began = time.monotonic()
    reply = call_next(message, context)
    reply.content["metrics"]["seconds"] = time.monotonic() - began
    return reply


def counted(message: Message, context: Context, call_next) -> Message:
    """Count rounds in the client's state, by a setting that only train messages have."""
    number = message.content["config"]["server-round"]
    state = context.state.setdefault("rounds", ConfigRecord({"seen": []}))
    state["seen"] = [*state["seen"], number]
    reply = call_next(message, context)
    reply.content["metrics"]["rounds-seen"] = len(state["seen"])
    return reply


app = ClientApp(mods=[timed, counted, arrays_size_mod])


def mine(context: Context):
    node = context.node_config
    return share(int(node["partition-id"]), int(node["num-partitions"]))


answer_queries(app, size=lambda c: len(mine(c)[0]), profile=lambda _, c: mine(c)[0].mean(axis=0))


@app.train()
def fit(message: Message, context: Context) -> Message:
    x, y = mine(context)
    w, loss = train(message.content["arrays"]["w"].numpy(), x, y, message.content["config"]["lr"])
    content = {
        "arrays": ArrayRecord({"w": Array(w)}),
        "metrics": MetricRecord({"train_loss": loss, "num-examples": len(x)}),
    }
    return Message(RecordDict(content), reply_to=message)
