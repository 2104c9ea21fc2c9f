"""A server around FedAvg; fedcohort's lines are the import and the wrapping."""

import json
import pathlib

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedcohort.flower import CohortStrategy
from torch_quickstart.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = FedAvg(fraction_evaluate=float(config["fraction-evaluate"]))
    strategy = CohortStrategy(strategy, str(config["selector"]), cohort=2, min_clients=4)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": float(config["learning-rate"])}),
        num_rounds=int(config["num-server-rounds"]),
    )
    evaluated = {str(r): dict(m) for r, m in result.evaluate_metrics_clientapp.items()}
    report(str(config["folder"]), strategy, evaluated=evaluated)


def report(folder: str, strategy: CohortStrategy, **more: object) -> None:
    """Leave what happened where the test looks for it."""
    done = {
        "cohorts": [summary.cohort for summary in strategy.history],
        "trained": [summary.trained for summary in strategy.history],
        **more,
    }
    pathlib.Path(folder, "torch-quickstart.json").write_text(json.dumps(done))
