import contextlib
import dataclasses
import json
import pathlib

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits_app.task import first_model, load, probabilities
from fedcohort.flower import CohortStrategy

TEST_SHARE = -1

app = ServerApp()


class SeenEnoughError(Exception):
    pass


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    progress = pathlib.Path(str(config["folder"])) / "progress.jsonl"
    x, y = load(context, TEST_SHARE)
    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0),
        str(config["selector"]),
        cohort=int(config["cohort"]),
        min_clients=int(config["min-clients"]),
        min_cohort=2,
        deadline=float(config["deadline"]),
        checkpoint=progress.with_name("server.npz"),
    )

    def report(_: int, arrays: ArrayRecord) -> None:
        model = {key: array.numpy() for key, array in arrays.items()}
        accuracy = float((probabilities(model, x).argmax(1) == y).mean())
        if not strategy.history:
            return
        line = dataclasses.asdict(strategy.history[-1]) | {"accuracy": accuracy}
        with progress.open("a") as file:
            file.write(json.dumps(line) + "\n")
        if len(strategy.history) > 3 and any(config["late"] in s.trained for s in strategy.history):
            raise SeenEnoughError

    arrays = {key: Array(np.asarray(values)) for key, values in first_model(x).items()}
    with contextlib.suppress(SeenEnoughError):
        strategy.start(
            grid, ArrayRecord(arrays), num_rounds=int(config["rounds"]), evaluate_fn=report
        )
