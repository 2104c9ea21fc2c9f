"""Run FedAvg over MNIST with cohorts that a selector chooses, in NVFlare's simulator.

    python job.py --selector match --rounds 20
    python job.py --selector fedavg --rounds 20
    python job.py --export jobs        # write the job for `nvflare job submit -j jobs/mnist`

Afterwards the accuracy on the test set is printed, and who trained in each round.
"""

import argparse
import json
import pathlib
import sys

import numpy as np
import torch
from mnist_net import SITES, Net, dataset, scaled
from nvflare.app_opt.pt.job_config.model import PTModel
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import ScriptRunner

from fedcohort.adapters.checkpoint import Checkpoint
from fedcohort.nvflare import QUERY_TASKS, CohortFedAvg, TorchQueryExecutor


def make_job(selector: str, rounds: int, cohort: int, checkpoint: pathlib.Path) -> FedJob:
    """Return a job: three lines of it are fedcohort's."""
    torch.manual_seed(0)
    job = FedJob(name="mnist", min_clients=SITES)
    persistor = job.to_server(PTModel(Net()))
    job.to_server(
        CohortFedAvg(
            selector=selector,
            num_clients=cohort,
            num_rounds=rounds,
            checkpoint=str(checkpoint),
            persistor_id=persistor["persistor_id"],
        )
    )
    job.to_clients(TorchQueryExecutor(load="mnist_net:load"), tasks=list(QUERY_TASKS))
    job.to_clients("mnist_net.py")
    job.to_clients(ScriptRunner(script="train.py"), tasks=["train"])
    return job


def main() -> None:
    """Run or write the job."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--selector", default="match")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cohort", type=int, default=4)
    parser.add_argument("--workspace", type=pathlib.Path, default=pathlib.Path("workspace"))
    parser.add_argument("--export", type=pathlib.Path, help="write the job there, and run nothing")
    options = parser.parse_args()
    workspace = options.workspace.resolve()
    checkpoint = workspace / f"{options.selector}.npz"
    job = make_job(options.selector, options.rounds, options.cohort, checkpoint)
    if options.export:
        job.export_job(str(options.export))
        return
    job.simulator_run(str(workspace / options.selector), n_clients=SITES, threads=SITES)
    saved = Checkpoint.load(checkpoint)
    if saved is None:
        sys.exit("the job ended without a round: see its log in the workspace")
    net = Net()
    net.load_state_dict({n: torch.as_tensor(np.asarray(v)) for n, v in saved.model.items()})
    data = dataset()
    with torch.no_grad():
        right = net(scaled(data.x_test)).argmax(1) == torch.tensor(data.y_test)
    for line in next(workspace.glob(f"{options.selector}/**/cohorts.jsonl")).open():
        done = json.loads(line)
        sys.stdout.write(f"round {done['round']}: {', '.join(done['trained'])}\n")
    sys.stdout.write(f"{options.selector}: test accuracy {right.float().mean():.3f}\n")


if __name__ == "__main__":
    main()
