"""The same work for everyone: the engine, a plain loop, Flower's simulation and pfl-research.

Every system is given the same federation, first model, cohorts, batches and rounds, one run, and
must reach the same test accuracy before a speed is reported. Times are the median a round after
the first.

The peers are `pip install 'flwr[simulation]==1.41.0' pfl==0.6.0`; pfl-research runs in its fastest
form on two cores, two processes of one thread.
"""

import dataclasses
import importlib.util
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

PEERS = Path(__file__).parent / "peers"
sys.path.insert(0, str(PEERS))
# Peers and Ray's workers import the task as well.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(PEERS), os.environ.get("PYTHONPATH", "")])
)

from task import Task, run_loop  # noqa: E402

from fedcohort.simulation.device_data import load_device_data  # noqa: E402
from fedcohort.simulation.jobs import order_keys  # noqa: E402
from fedcohort.simulation.lockstep import Lockstep  # noqa: E402
from fedcohort.training.plan import make_plan  # noqa: E402
from fedcohort.training.problem import Jobs, LocalWork  # noqa: E402

TOLERANCE = 0.01
CPU = torch.device("cpu")


def ours(config, materials, rounds):
    """Return seconds a round, the cohorts, and the last global model."""
    # Asked for one round more than it does, so that it does not evaluate the last one.
    config = dataclasses.replace(config, rounds=rounds + 1, eval_every=rounds + 1)
    lockstep = Lockstep([config], materials, CPU)
    seconds, cohorts = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        (record,) = lockstep.advance()
        seconds.append(time.perf_counter() - began)
        cohorts.append(record.cohort)
    return seconds, cohorts, {name: v[0].clone() for name, v in lockstep.parameters.items()}


def ours_again(found, config, materials):
    """Add a second measurement of ours, after all others: a machine's speed drifts."""
    seconds, state = found["ours"]
    more, _, _ = ours(config, materials, len(seconds))
    return found | {"ours": (seconds + more[1:], state)}


def task_of(config, materials, cohorts):
    """Return what the engine did in these rounds, for others to do."""
    data = load_device_data(materials.dataset(config), config, CPU)
    partition = materials.federation(config).partition
    pool, orders = torch.from_numpy(partition.indices), []
    for round_, cohort in enumerate(cohorts, 1):
        ids = np.unique(cohort)
        jobs = Jobs(
            model=torch.zeros(len(ids), dtype=torch.int64),
            start=torch.from_numpy(partition.offsets[ids]),
            size=torch.from_numpy(partition.sizes[ids]),
            key=torch.from_numpy(order_keys(config.seed, round_, ids)),
            passes=torch.ones(len(ids), dtype=torch.float64),
        )
        plan = make_plan(jobs, pool, LocalWork(config.batch_size, config.lr))
        used = plan.weight > 0
        visits = zip(plan.sample.unbind(1), used.unbind(1), strict=True)
        orders.append(torch.stack([samples[mask] for samples, mask in visits]))
    order = torch.stack(orders)
    return Task(
        *data.train,
        *data.test,
        order=order,
        state=materials.model(config).state_dict(),
        model=config.model,
        batch=config.batch_size or order.shape[2],
        lr=config.lr,
    )


def per_round(seconds):
    return statistics.median(seconds[1:])


def compared(title, task, found):
    """Print and return times a round, and ratios, once all accuracies agree."""
    accuracy = {name: task.accuracy(state) for name, (_, state) in found.items()}
    print(f"\n{title}")
    if max(accuracy.values()) - min(accuracy.values()) > TOLERANCE:
        sys.exit(
            f"The accuracies differ by more than {TOLERANCE}, so no speed is reported: {accuracy}"
        )
    results = {}
    mine = per_round(found["ours"][0])
    for name, (seconds, _) in found.items():
        results[f"{name}_s"] = per_round(seconds)
        line = f"  {name:28} {1e3 * per_round(seconds):10.2f} ms a round"
        line += f", accuracy {accuracy[name]:.4f}"
        if name != "ours":
            results[f"over_{name}"] = per_round(seconds) / mine
            line += f", {results[f'over_{name}']:6.2f} × ours"
        print(line, flush=True)
    return results


def installed(package, command):
    if importlib.util.find_spec(package):
        return True
    print(f"{package} is not installed and left out: {command}")
    return False


def run_pfl(task, folder):
    """Run pfl-research as two processes of one thread."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    common = os.environ | {"OMP_NUM_THREADS": "1", "PFL_WORKER_ADDRESSES": f"{address},{address}"}
    task.save(folder)
    workers = [
        subprocess.Popen(
            [sys.executable, str(PEERS / "pfl_peer.py"), str(folder)],
            env=common | {"PFL_WORKER_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for worker in workers:
        _, log = worker.communicate()
        if worker.returncode:
            sys.exit(f"pfl-research failed:\n{log[-2000:]}")
    return torch.load(folder / "pfl.pt")


def run_flower(task, folder, nodes, *selector):
    """Run Flower's simulation, two clients at once, one thread each."""
    task.save(folder)
    environment = os.environ | {
        "FEDCOHORT_TASK": str(folder),
        "FLWR_HOME": str(folder / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    done = subprocess.run(
        [sys.executable, str(PEERS / "flower_peer.py"), str(nodes), *selector],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not (folder / "flower.pt").exists():
        sys.exit(f"Flower's simulation failed:\n{done.stderr[-2000:]}")
    return torch.load(folder / "flower.pt")


def with_peers(task, mine, *, pfl):
    found = {"ours": mine, "loop": run_loop(task)}
    with tempfile.TemporaryDirectory() as folder:
        if pfl and installed("pfl", "pip install pfl==0.6.0"):
            found["pfl-research"] = run_pfl(task, Path(folder))
        if installed("ray", "pip install 'flwr[simulation]==1.41.0'"):
            nodes = task.order.shape[1]
            found["flower"] = run_flower(task, Path(folder), nodes)
    return found
