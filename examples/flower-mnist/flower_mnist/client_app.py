"""The client: an ordinary Flower ClientApp, and one line for fedcohort."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.utils.data import DataLoader

from fedcohort.flower import profile_query
from flower_mnist.task import client_data, make_model, train

app = ClientApp()


def load(context: Context) -> tuple[nn.Module, DataLoader]:
    """Return this client's model and data."""
    config, node = context.run_config, context.node_config
    batches = client_data(config, int(node["partition-id"]), int(node["num-partitions"]))
    return make_model(config), batches


profile_query(app, load)


@app.train()
def fit(message: Message, context: Context) -> Message:
    """Train the global model on this client's data."""
    model, batches = load(context)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss = train(model, batches, context.run_config)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(batches.dataset)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
