"""A client whose updates leave it masked."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedcohort.flower import answer_queries, secure_mods
from masked_app.data import share
from masked_app.task import train

app = ClientApp()


def mine(context: Context):
    node = context.node_config
    return share(int(node["partition-id"]), int(node["num-partitions"]))


answer_queries(app, size=lambda c: len(mine(c)[0]), profile=lambda _, c: mine(c)[0].mean(axis=0))


@app.train(mods=secure_mods())
def fit(message: Message, context: Context) -> Message:
    x, y = mine(context)
    w, loss = train(message.content["arrays"]["w"].numpy(), x, y, message.content["config"]["lr"])
    content = {
        "arrays": ArrayRecord({"w": Array(w)}),
        "metrics": MetricRecord({"train_loss": loss, "num-examples": len(x)}),
    }
    return Message(RecordDict(content), reply_to=message)
