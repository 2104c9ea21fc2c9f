"""The server: FedAvg over the cohorts that the selector chooses."""

import json
import pathlib

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedcohort.flower import CohortStrategy
from fl_dp3s.dataset import test_data
from fl_dp3s.model import Net, accuracy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, evaluate after each round, and write the rounds down."""
    config = context.run_config
    torch.manual_seed(int(config["seed"]))
    net = Net()
    x, y = test_data()
    scores: dict[int, float] = {}

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net.load_state_dict(arrays.to_torch_state_dict())
        scores[server_round] = accuracy(net, x, y)
        return MetricRecord({"accuracy": scores[server_round]})

    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1),
        str(config["selector"]),
        cohort=int(config["clients-per-round"]),
        min_clients=int(config["num-clients"]),
        seed=int(config["seed"]),
        identify=True,
    )
    strategy.start(
        grid,
        ArrayRecord(net.state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
    if config["results"]:
        with pathlib.Path(str(config["results"])).open("w", encoding="utf-8") as file:
            for done in strategy.history:
                line = {"round": done.round, "cohort": done.cohort, "accuracy": scores[done.round]}
                file.write(json.dumps(line) + "\n")
