"""A client that trains and evaluates; fedcohort's lines are the import and the call."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedcohort.flower import profile_query
from torch_quickstart.task import Net, load_data, test, train

app = ClientApp()


def mine(context: Context):
    node = context.node_config
    return load_data(int(node["partition-id"]), int(node["num-partitions"]))


profile_query(app, lambda context: (Net(), mine(context)))


def received(message: Message) -> Net:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return net


@app.train()
def fit(message: Message, context: Context) -> Message:
    net, batches = received(message), mine(context)
    epochs = int(context.run_config["local-epochs"])
    loss = train(net, batches, epochs, message.content["config"]["lr"])
    metrics = {"train_loss": loss, "num-examples": len(batches.dataset)}
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def score(message: Message, context: Context) -> Message:
    net, batches = received(message), mine(context)
    metrics = {"eval_acc": test(net, batches), "num-examples": len(batches.dataset)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
