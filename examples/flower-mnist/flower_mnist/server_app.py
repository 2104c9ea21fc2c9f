"""The server: an ordinary Flower ServerApp whose strategy is wrapped in a CohortStrategy."""

from logging import INFO

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedcohort.flower import CohortStrategy
from flower_mnist.task import make_model, test_data

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and evaluate on the server."""
    config = context.run_config
    model = make_model(config)
    x, y = test_data(config)

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            accuracy = (model(x).argmax(1) == y).float().mean()
        return MetricRecord({"accuracy": float(accuracy)})

    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0),
        selector=str(config["selector"]),
        cohort=int(config["cohort"]),
        min_clients=int(config["min-clients"]),
        seed=int(config["seed"]),
        deadline=float(config["deadline"]),
        checkpoint=str(config["checkpoint"]) or None,
    )
    strategy.start(
        grid,
        ArrayRecord(model.state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
    for summary in strategy.history:
        log(INFO, "Round %d: cohort %s", summary.round, ", ".join(summary.cohort))
