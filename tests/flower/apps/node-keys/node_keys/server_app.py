"""A server around FedAvg."""

import json
import pathlib

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedcohort.flower import CohortStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = FedAvg(fraction_evaluate=0.0)
    strategy = CohortStrategy(strategy, str(config["selector"]), cohort=2, min_clients=4)
    result = strategy.start(
        grid,
        ArrayRecord({"w": Array(np.zeros((64, 10), np.float32))}),
        num_rounds=int(config["num-server-rounds"]),
        train_config=ConfigRecord({"lr": float(config["learning-rate"])}),
    )
    metrics = {str(r): dict(m) for r, m in result.train_metrics_clientapp.items()}
    report(str(config["folder"]), strategy, metrics=metrics)


def report(folder: str, strategy: CohortStrategy, **more: object) -> None:
    """Leave what happened where the test looks for it."""
    done = {
        "cohorts": [summary.cohort for summary in strategy.history],
        "trained": [summary.trained for summary in strategy.history],
        **more,
    }
    pathlib.Path(folder, "node-keys.json").write_text(json.dumps(done))
