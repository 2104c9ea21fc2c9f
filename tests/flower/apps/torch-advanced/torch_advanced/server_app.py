"""A strategy with a start of its own: it saves the best model and logs each round."""

import json
import pathlib

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedcohort.flower import CohortStrategy
from torch_advanced.task import Net, load_data, test

app = ServerApp()


class Saving(FedAvg):
    """FedAvg that halves the rate from round 2 on, and keeps the best model."""

    def keep_in(self, folder: str) -> None:
        self.folder, self.best = pathlib.Path(folder), 0.0

    def configure_train(self, server_round, arrays, config, grid):
        if server_round == 2:
            config["lr"] *= 0.5
        return super().configure_train(server_round, arrays, config, grid)

    def _note(self, server_round: int, arrays: ArrayRecord, metrics: MetricRecord) -> None:
        with (self.folder / "rounds.log").open("a") as file:
            file.write(f"{server_round} {metrics['accuracy']}\n")
        if metrics["accuracy"] > self.best:
            self.best = metrics["accuracy"]
            torch.save(arrays.to_torch_state_dict(), self.folder / "best.pt")

    def start(
        self,
        grid,
        initial_arrays,
        num_rounds=3,
        timeout=3600,
        train_config=None,
        evaluate_config=None,
        evaluate_fn=None,
    ):
        """Do the rounds, and look at the model after each."""
        arrays, evaluate_config = initial_arrays, evaluate_config or ConfigRecord()
        for server_round in range(1, num_rounds + 1):
            replies = grid.send_and_receive(
                messages=self.configure_train(server_round, arrays, train_config, grid),
                timeout=timeout,
            )
            new_arrays, _ = self.aggregate_train(server_round, replies)
            arrays = arrays if new_arrays is None else new_arrays
            replies = grid.send_and_receive(
                messages=self.configure_evaluate(server_round, arrays, evaluate_config, grid),
                timeout=timeout,
            )
            self.aggregate_evaluate(server_round, replies)
            self._note(server_round, arrays, evaluate_fn(server_round, arrays))


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    inner = Saving(fraction_evaluate=float(config["fraction-evaluate"]))
    inner.keep_in(str(config["folder"]))
    strategy = CohortStrategy(inner, str(config["selector"]), cohort=2, min_clients=4)

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        net = Net()
        net.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": test(net, load_data(0, 1))})

    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": float(config["learning-rate"])}),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
    report(str(config["folder"]), strategy, best=inner.best)


def report(folder: str, strategy: CohortStrategy, **more: object) -> None:
    """Leave what happened where the test looks for it."""
    done = {
        "cohorts": [summary.cohort for summary in strategy.history],
        "trained": [summary.trained for summary in strategy.history],
        **more,
    }
    pathlib.Path(folder, "torch-advanced.json").write_text(json.dumps(done))
