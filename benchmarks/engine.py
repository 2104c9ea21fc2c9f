"""How fast the simulator trains: against a plain loop, Flower's simulation and pfl-research.

    python benchmarks/engine.py [--quick] [--json] [--save FILE] [--part NAME]

Every system is given the same federation, first model, cohorts, batches and rounds, one run, and
must reach the same test accuracy before a speed is reported. Times are the median a round after
the first. Parts:

wide     CNN 32-64-512 on MNIST, 10 clients of 600 samples a round, batches of 50
ceiling  CNN 20-50-500 on MNIST, full batches of 540: GFLOP/s against this machine's sgemm
digits   the small CNN on digits, 10 of 100 clients a round, full batches
command  20 rounds with profiling, from the shell's prompt to the result: `fedcohort run` against
         Flower's simulation of the same (not with --quick)
gpu      only where there is one: local training of 100 runs at once, and whole runs, in
         milliseconds a run-round; bfloat16 against float32 (needs PyTorch, NumPy and SciPy alone)

The peers are `pip install 'flwr[simulation]==1.41.0' pfl==0.6.0`; pfl-research runs in its fastest
form on two cores, two processes of one thread. MNIST must be there (`fedcohort data fetch mnist`).
Measure on an idle machine.
"""

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from markdown import add_save, save, table
from side_by_side import (
    CPU,
    TOLERANCE,
    compared,
    installed,
    ours,
    ours_again,
    per_round,
    run_flower,
    task_of,
    with_peers,
)
from task import run_loop
from torch.utils.flop_counter import FlopCounterMode

from fedcohort.errors import FedcohortError
from fedcohort.federation import Dataset, load_dataset
from fedcohort.simulation import RunConfig
from fedcohort.simulation.jobs import jobs_of
from fedcohort.simulation.lockstep import Lockstep
from fedcohort.simulation.materials import Materials
from fedcohort.training.sequential import SEQUENTIAL

WIDE = RunConfig(
    dataset="mnist",
    skew="iid",
    samples_per_client=600,
    selector="fedavg",
    batch_size=50,
    lr=0.05,
    model="task:WideCNN",
)
PAPER = RunConfig(
    dataset="mnist", skew="iid", samples_per_client=540, selector="fedavg", model="cnn"
)
DIGITS = RunConfig(dataset="digits", skew="iid", selector="fedavg", model="cnn-small")
RUNS_TOGETHER = 25


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--part", choices=list(PARTS))
    add_save(parser)
    options = parser.parse_args()
    parts = [options.part] if options.part else [p for p in PARTS if usual(p, options.quick)]
    results = {}
    for part in parts:
        results |= {f"{part}_{name}": value for name, value in PARTS[part](options.quick).items()}
    table("all figures", ["figure", "value"], list(results.items()), digits=5)
    save(options.save)
    if options.json:
        print(json.dumps(results))


def usual(part, quick):
    if torch.cuda.is_available():
        return part == "gpu"
    return part not in (("gpu", "command") if quick else ("gpu",))


# -- parts ------------------------------------------------------------------------------------


def wide(quick):
    materials = Materials()
    seconds, cohorts, state = ours(WIDE, materials, 3 if quick else 8)
    task = task_of(WIDE, materials, cohorts)
    found = ours_again(with_peers(task, (seconds, state), pfl=True), WIDE, materials)
    return compared("CNN 32-64-512, 10 × 600 samples, B=50", task, found)


def ceiling(quick):
    materials = Materials()
    limit = sgemm()
    seconds, cohorts, state = ours(PAPER, materials, 4 if quick else 10)
    task = task_of(PAPER, materials, cohorts)
    found = {"ours": (seconds, state), "loop": run_loop(task)}
    found = ours_again(found, PAPER, materials)
    results = compared("CNN 20-50-500, 10 × 540 samples, full batch", task, found)
    limit, flops = max(limit, sgemm()), training_flops(task) / 1e9
    # The limit is sgemm's fastest try, so the fastest round is compared with it too.
    usual, best = flops / results["ours_s"], flops / min(found["ours"][0])
    print(
        f"  {usual:.0f} GFLOP/s, {best:.0f} in the fastest round, of {limit:.0f} that sgemm reaches"
        f" here: {usual / limit:.0%} and {best / limit:.0%}"
    )
    shares = {"share": usual / limit, "fastest_share": best / limit}
    return results | {"gflops": usual, "sgemm_gflops": limit} | shares


def sgemm():
    """Return the best GFLOP/s of square single-precision products."""
    best = 0.0
    for n in (1024, 2048, 4096):
        a, b, c = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
        for _ in range(5):
            began = time.perf_counter()
            torch.mm(a, b, out=c)
            best = max(best, 2 * n**3 / (time.perf_counter() - began) / 1e9)
    return best


def training_flops(task):
    """Count the products and sums of one round: forward, and both halves of backward."""
    model = task.make_model()
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(task.x[:2]), task.y[:2]).backward()
    return counter.get_total_flops() / 2 * task.order[0].numel()


def digits(quick):
    materials = Materials()
    rounds = 60 if quick else 200
    seconds, cohorts, state = ours(DIGITS, materials, rounds)
    task = task_of(DIGITS, materials, cohorts)
    found = ours_again(with_peers(task, (seconds, state), pfl=False), DIGITS, materials)
    results = compared("digits, small CNN, 10 × 14 samples, full batch, one run", task, found)
    configs = [dataclasses.replace(DIGITS, seed=seed, rounds=rounds + 1) for seed in range(25)]
    configs = [dataclasses.replace(config, eval_every=rounds + 1) for config in configs]
    lockstep, times = Lockstep(configs, materials, CPU), []
    for _ in range(rounds // 4):
        began = time.perf_counter()
        lockstep.advance()
        times.append((time.perf_counter() - began) / RUNS_TOGETHER)
    together = per_round(times)
    ratios = {
        f"together_over_{name}": results[f"{name}_s"] / together
        for name in ("loop", "flower")
        if name in found
    }
    print(
        f"  ours, {RUNS_TOGETHER} runs in lockstep        {1e3 * together:10.2f} ms a run-round;"
        + "".join(f" {name.split('_')[-1]} {ratio:.1f} ×" for name, ratio in ratios.items())
    )
    return results | {"together_s": together} | ratios


def command(quick):
    rounds = 5 if quick else 20
    materials = Materials()
    config = dataclasses.replace(WIDE, selector="dp3s")
    partition = materials.federation(config).partition
    everyone = torch.from_numpy(partition.indices)
    task = task_of(config, materials, [range(config.cohort)] * rounds)
    # Node c of the simulation holds the c-th slice of the data: client c's samples.
    task = dataclasses.replace(task, x=task.x[everyone], y=task.y[everyone])
    with tempfile.TemporaryDirectory() as folder:

        def run(out):
            began = time.perf_counter()
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "fedcohort"),
                    *("run", "--json", "--device", "cpu", "--out", f"{folder}/{out}"),
                    *("--dataset", "mnist", "--skew", "iid", "--samples-per-client", "600"),
                    *("--selector", "dp3s", "--rounds", str(rounds), "--eval-every", str(rounds)),
                    *("--batch-size", "50", "--lr", "0.05", "--model", config.model),
                ],
                capture_output=True,
                text=True,
                check=True,
            )
            accuracy = json.loads(done.stdout)["results"][0]["test_accuracy"][-1]
            return time.perf_counter() - began, accuracy

        mine, accuracy = run("first")
        print(f"\nwhole command, CNN 32-64-512, {rounds} rounds with profiling of 100 clients")
        results = {"ours_s": mine}
        if not installed("ray", "pip install 'flwr[simulation]==1.41.0'"):
            return results
        began = time.perf_counter()
        _, state = run_flower(task, Path(folder), config.clients, config.selector)
        theirs = time.perf_counter() - began
        other = task.accuracy(state)
        # Before and after, since a machine's speed drifts.
        mine = (mine + run("second")[0]) / 2
        results = {"ours_s": mine}
        if abs(accuracy - other) > 2 * TOLERANCE:
            sys.exit(f"The accuracies differ, so no speed is reported: {accuracy}, {other}")
        print(f"  ours   {mine:7.1f} s, accuracy {accuracy:.4f}")
        print(f"  flower {theirs:7.1f} s, accuracy {other:.4f}, {theirs / mine:.2f} × ours")
        return results | {"flower_s": theirs, "over_flower": theirs / mine}


# -- on a GPU ---------------------------------------------------------------------------------

GPU_RUNS = 100


def gpu(quick):
    if not torch.cuda.is_available():
        sys.exit("There is no CUDA device here.")
    materials = Materials({"images": images()})
    results, rows = {}, []
    head = ["batch", "plain loop", "local training", "", "whole run"]
    print(f"\n{torch.cuda.get_device_name()}: CNN 20-50-500, 10 × 540 samples, {GPU_RUNS} runs")
    for label, batch in (("full", None), ("54", 54), ("10", 10)):
        config = dataclasses.replace(
            PAPER, dataset="images", batch_size=batch, selector="dp3s", skew="1"
        )
        times = gpu_times(config, materials, label, quick)
        results |= {f"B{label}_{name}": value for name, value in times.items()}
        rows.append(milliseconds(label, **times))
    table("milliseconds a run-round", head, rows)
    return results | precisions(materials, quick)


def milliseconds(label, *, loop_ms, training_ms, whole_ms, over_loop, whole_over_training):
    """Return a row: the loop, local training and how much faster it is, and the whole run."""
    whole = f"{whole_ms:.3f}, {whole_over_training:.2f} × local training"
    return [label, f"{loop_ms:.1f}", training_ms, f"{over_loop:.0f} ×", whole]


def images():
    """Return MNIST, or made-up images of the same shape where there is none."""
    try:
        return dataclasses.replace(load_dataset("mnist"), name="images")
    except (FedcohortError, OSError, ImportError):
        print("MNIST is not here; made-up images instead")
    rng = np.random.default_rng(0)
    centres = rng.integers(0, 256, (10, 1, 28, 28))
    y = rng.integers(0, 10, 70_000)
    x = np.clip(centres[y] + rng.normal(0, 120, (70_000, 1, 28, 28)), 0, 255).astype(np.uint8)
    return Dataset("images", x[:60_000], y[:60_000], x[60_000:], y[60_000:], 10)


def gpu_times(config, materials, label, quick):
    """Measure the loop, local training alone, and whole rounds with everything."""
    device, rounds = torch.device("cuda"), 16 if quick else 46
    config = dataclasses.replace(config, precision="bfloat16", eval_samples=5000)
    probe = dataclasses.replace(config, rounds=3)
    ours, plain = (
        Lockstep([probe], materials, device, trainer=trainer) for trainer in (None, SEQUENTIAL)
    )
    for _ in range(probe.rounds):
        records = plain.advance()[0], ours.advance()[0]
    accuracies = [record.test_score or 0.0 for record in records]
    if abs(accuracies[0] - accuracies[1]) > TOLERANCE:
        sys.exit(f"The accuracies differ, so no speed is reported: {accuracies}")
    configs = [
        dataclasses.replace(config, seed=seed, rounds=rounds, eval_every=5)
        for seed in range(GPU_RUNS)
    ]
    lockstep = Lockstep(configs, materials, device)
    lockstep.start()
    lockstep.advance()
    everyone = range(GPU_RUNS)
    loop = timed_on_gpu(plain, range(1), 3)
    alone = timed_on_gpu(lockstep, everyone, 5) / GPU_RUNS
    # Until everything has been compiled, evaluation included.
    while lockstep.round < 6:
        lockstep.advance()
    torch.cuda.synchronize()
    began, first = time.perf_counter(), lockstep.round
    while lockstep.round < rounds:
        lockstep.advance()
    torch.cuda.synchronize()
    whole = (time.perf_counter() - began) / (rounds - first) / GPU_RUNS
    print(
        f"  B={label:5} loop {1e3 * loop:8.2f}, local training {1e3 * alone:6.3f}"
        f" ({loop / alone:.0f} ×), whole run {1e3 * whole:6.3f} ({whole / alone:.2f} × that);"
        f" accuracy after 3 rounds {accuracies[0]:.4f} and {accuracies[1]:.4f}",
        flush=True,
    )
    return {
        "loop_ms": 1e3 * loop,
        "training_ms": 1e3 * alone,
        "whole_ms": 1e3 * whole,
        "over_loop": loop / alone,
        "whole_over_training": whole / alone,
    }


def timed_on_gpu(lockstep: Lockstep, runs: range, repeats: int) -> float:
    """Return the median seconds of one round's local training, of these runs together."""
    members = [lockstep._members[r] for r in runs]
    assigned = list(zip(members, lockstep._assignments(members), strict=True))
    problem = lockstep._problem(jobs_of(lockstep.round, assigned))
    times = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        lockstep._trainer.train(problem)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def precisions(materials, quick):
    """Compare accuracy curves of bfloat16 and float32 with the spread over seeds."""
    rounds, seeds = (10, 4) if quick else (40, 10)
    curves = {}
    for precision in ("float32", "bfloat16"):
        configs = [
            dataclasses.replace(
                PAPER,
                dataset="images",
                skew="1",
                batch_size=54,
                lr=0.1,
                rounds=rounds,
                eval_samples=5000,
                seed=seed,
                precision=precision,
            )
            for seed in range(seeds)
        ]
        lockstep = Lockstep(configs, materials, torch.device("cuda"))
        rows = [[r.test_score for r in lockstep.advance()] for _ in range(rounds)]
        curves[precision] = np.array(rows)
    exact, short = curves["float32"], curves["bfloat16"]
    difference = np.abs(exact.mean(1) - short.mean(1))
    # How far two means of as many seeds lie apart by chance.
    noise = 2 * exact.std(1, ddof=1) * np.sqrt(2 / exact.shape[1])
    inside = float((difference <= noise).mean())
    print(
        f"  bfloat16 against float32, {rounds} rounds, {seeds} seeds: mean curves differ by"
        f" {difference.mean():.4f} (at most {difference.max():.4f}); two means of {seeds} seeds"
        f" differ by {noise.mean():.4f}; inside that in {inside:.0%} of the rounds"
    )
    return {
        "bf16_difference": float(difference.mean()),
        "seed_noise": float(noise.mean()),
        "bf16_inside": inside,
    }


PARTS = {"wide": wide, "ceiling": ceiling, "digits": digits, "command": command, "gpu": gpu}


if __name__ == "__main__":
    main()
