"""A client that keeps its head in its state."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedcohort.flower import profile_query
from torch_advanced.task import Net, load_data, test, train

app = ClientApp()


def mine(context: Context):
    node = context.node_config
    return load_data(int(node["partition-id"]), int(node["num-partitions"]))


profile_query(app, lambda context: (Net(), mine(context)))


def received(message: Message, context: Context) -> Net:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    if "head" in context.state:
        net.head.load_state_dict(context.state["head"].to_torch_state_dict())
    return net


@app.train()
def fit(message: Message, context: Context) -> Message:
    net, batches = received(message, context), mine(context)
    loss = train(net, batches, message.content["config"]["lr"])
    context.state["head"] = ArrayRecord(net.head.state_dict())
    metrics = {"train_loss": loss, "num-examples": len(batches.dataset)}
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def score(message: Message, context: Context) -> Message:
    net, batches = received(message, context), mine(context)
    metrics = {"eval_acc": test(net, batches), "num-examples": len(batches.dataset)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
