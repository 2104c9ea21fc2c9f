"""Flower's simulation engine (Ray) on a task: two cores, one a client, one thread each.

    FEDCOHORT_TASK=FOLDER python flower_peer.py NODES [SELECTOR]

Without a selector the cohorts are the task's. With one, fedcohort's adapter first profiles all
nodes and then chooses, as in a real federation.
"""

import os
import sys
import time
from pathlib import Path

import flower_client
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.simulation import run_simulation

from fedcohort.flower import CohortStrategy

CORES = 2


class Scheduled(FedAvg):
    """FedAvg that tells each of the first nodes which of the task's clients it is."""

    def __init__(self, cohort):
        super().__init__(fraction_evaluate=0.0)
        self.cohort, self.seconds = cohort, []

    def configure_train(self, server_round, arrays, config, grid):  # noqa: ARG002
        self.began = time.perf_counter()
        messages = []
        for slot, node in enumerate(sorted(grid.get_node_ids())[: self.cohort]):
            told = ConfigRecord({"server-round": server_round, "slot": slot})
            content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: told})
            messages.append(Message(content=content, message_type="train", dst_node_id=node))
        return messages

    def aggregate_train(self, server_round, replies):
        found = super().aggregate_train(server_round, list(replies))
        self.seconds.append(time.perf_counter() - self.began)
        return found


def main():
    folder, nodes = Path(os.environ["FEDCOHORT_TASK"]), int(sys.argv[1])
    selector = sys.argv[2] if len(sys.argv) > 2 else None
    server = ServerApp()

    @server.main()
    def serve(grid, _context):
        task = flower_client.task()
        torch.set_num_threads(CORES)
        rounds, cohort = task.order.shape[:2]
        scheduled = Scheduled(cohort)
        strategy: Strategy = scheduled
        if selector is not None:
            plain = FedAvg(fraction_evaluate=0.0)
            strategy = CohortStrategy(plain, selector, cohort=cohort, min_clients=nodes)
        result = strategy.start(grid, ArrayRecord(task.state), num_rounds=rounds)
        state = result.arrays.to_torch_state_dict()
        if selector is not None:
            # A whole command ends with an accuracy, as ours does (of 60,000 samples more).
            print(f"test accuracy {task.accuracy(state):.4f}")
        torch.save((scheduled.seconds, state), folder / "flower.pt")

    run_simulation(
        server_app=server,
        client_app=flower_client.app,
        num_supernodes=nodes,
        backend_config={
            "init_args": {"num_cpus": CORES, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
