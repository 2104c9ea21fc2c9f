import pathlib
import threading

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app.task import load, train
from fedcohort.flower import answer_queries

app = ClientApp()


def mine(context: Context):  # type: ignore[no-untyped-def]
    return load(context, int(context.node_config["share"]))


answer_queries(
    app, size=lambda c: len(mine(c)[0]), profile=lambda _, context: mine(context)[0].mean(0)
)


@app.train()
def fit(message: Message, context: Context) -> Message:
    name = str(context.node_config["fedcohort-id"])
    if message.content["config"]["server-round"] == 2:
        hang_if_first(pathlib.Path(str(context.run_config["folder"])) / "victim", name)
    model = {key: array.numpy() for key, array in message.content["arrays"].items()}
    x, y = mine(context)
    loss = train(model, x, y)
    arrays = ArrayRecord({key: Array(values) for key, values in model.items()})
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(x)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def hang_if_first(mark: pathlib.Path, name: str) -> None:
    """Let the first client of the round leave its name and wait to be killed."""
    try:
        with mark.open("x") as file:
            file.write(f"{name}\n")
    except FileExistsError:
        return
    threading.Event().wait()
