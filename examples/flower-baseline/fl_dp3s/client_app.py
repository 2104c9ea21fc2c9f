"""The client: local SGD, and answers to the selector's queries."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.utils.data import DataLoader

from fedcohort.flower import profile_query
from fl_dp3s.dataset import client_data
from fl_dp3s.model import Net, train

app = ClientApp()


def batches_of(context: Context) -> DataLoader:
    """Return this client's data."""
    config, node = context.run_config, context.node_config
    return client_data(
        int(node["partition-id"]), int(node["num-partitions"]), int(config["batch-size"])
    )


profile_query(app, lambda context: (Net(), batches_of(context)))


@app.train()
def fit(message: Message, context: Context) -> Message:
    """Train the global model on this client's data."""
    net, batches = Net(), batches_of(context)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    config = context.run_config
    loss = train(net, batches, int(config["local-epochs"]), float(config["learning-rate"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(batches.dataset)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
