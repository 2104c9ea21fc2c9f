"""A server that averages coefficients."""

import json
import pathlib

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedcohort.flower import CohortStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=1.0)
    strategy = CohortStrategy(strategy, str(config["selector"]), cohort=2, min_clients=4)
    first = ArrayRecord([np.zeros((10, 64)), np.zeros(10)])
    result = strategy.start(grid, first, num_rounds=int(config["num-server-rounds"]))
    evaluated = {str(r): dict(m) for r, m in result.evaluate_metrics_clientapp.items()}
    report(str(config["folder"]), strategy, evaluated=evaluated)


def report(folder: str, strategy: CohortStrategy, **more: object) -> None:
    """Leave what happened where the test looks for it."""
    done = {
        "cohorts": [summary.cohort for summary in strategy.history],
        "trained": [summary.trained for summary in strategy.history],
        **more,
    }
    pathlib.Path(folder, "sklearn-quickstart.json").write_text(json.dumps(done))
