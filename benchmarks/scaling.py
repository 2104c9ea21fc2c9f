"""How a round's cost grows: with the cohort, the runs, the population and the model; and memory.

    python benchmarks/scaling.py [--quick] [--json] [--save FILE]

On the CPU, with the trainer that the rule says; evaluation is left out. Times are the
median a round, in milliseconds; of the population's table, what selection took is listed apart.
Memory is this process's resident set after the first rounds and after all of them. Models of 28×28
images train on made-up ones. Measure on an idle machine.
"""

import argparse
import dataclasses
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from markdown import add_save, save, table

from fedcohort.federation import Dataset, load_dataset
from fedcohort.simulation import RunConfig
from fedcohort.simulation.lockstep import Lockstep
from fedcohort.simulation.materials import Materials

DIGITS = RunConfig(dataset="digits", skew="iid", selector="fedavg", lr=0.05)
IMAGES = dataclasses.replace(
    DIGITS, dataset="made up", model="cnn", clients=10, samples_per_client=100, batch_size=50
)
POPULATIONS = (100, 1_000, 10_000, 100_000)


def made_up(samples=6000):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (samples, 1, 28, 28), dtype=np.uint8)
    y = np.arange(samples) % 10
    return Dataset("made up", x, y, x[:100], y[:100], 10, scale=255.0)


def start(config, dataset, runs=1):
    # More rounds than are done, so that nothing is evaluated.
    config = dataclasses.replace(config, rounds=10**6, eval_every=10**6)
    configs = [dataclasses.replace(config, seed=seed) for seed in range(runs)]
    return Lockstep(configs, Materials({config.dataset: dataset}), torch.device("cpu"))


def milliseconds(lockstep, rounds):
    """Return the median time a round, and what selection took of it."""
    lockstep.advance()
    times, selections = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        records = lockstep.advance()
        times.append(1e3 * (time.perf_counter() - began))
        selections.append(1e3 * sum(record.selection_seconds for record in records))
    return statistics.median(times), statistics.median(selections)


def resident():
    """Return this process's resident set in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    add_save(parser)
    options = parser.parse_args()
    rounds = 20 if options.quick else 100
    digits, results = load_dataset("digits"), {}

    rows = []
    for cohort in (5, 10, 20, 50, 100):
        lockstep = start(dataclasses.replace(DIGITS, cohort=cohort), digits)
        whole, _ = milliseconds(lockstep, rounds)
        rows.append([cohort, whole, whole / cohort])
        results[f"cohort_{cohort}_ms"] = whole
    table(
        "clients a round (digits, small CNN)",
        ["cohort", "ms a round", "ms a client"],
        rows,
        digits=2,
    )

    rows = []
    for runs in (1, 5, 25, 100):
        whole, _ = milliseconds(start(DIGITS, digits, runs), max(3, rounds // runs))
        rows.append([runs, whole, whole / runs])
        results[f"runs_{runs}_ms_a_run"] = whole / runs
    table(
        "runs in one group (digits, small CNN)",
        ["runs", "ms a round", "ms a run-round"],
        rows,
        digits=2,
    )

    rows = []
    for clients in POPULATIONS:
        config = dataclasses.replace(DIGITS, clients=clients, samples_per_client=10, reuse=True)
        whole, selection = milliseconds(start(config, digits), rounds)
        rows.append([f"{clients:,}", whole, selection, whole - selection])
        results[f"population_{clients}_ms_beyond_selection"] = whole - selection
    title = "population (digits, small CNN, cohorts of 10, uniform selection)"
    table(title, ["clients", "ms a round", "of which selection", "the rest"], rows, digits=2)
    results["population_ratio"] = rows[-1][3] / rows[0][3]

    rows, images = [], made_up()
    for model in ("mlp", "cnn-small", "cnn"):
        config = dataclasses.replace(IMAGES, model=model)
        lockstep = start(config, images)
        values = sum(values[0].numel() for values in lockstep.parameters.values())
        whole, _ = milliseconds(lockstep, 3 if options.quick else 10)
        rows.append([model, f"{values:,}", whole, lockstep.facts()[0]["trainer"]])
        results[f"model_{model}_ms"] = whole
    title = "model (28×28 images, 10 clients of 100 samples, batches of 50)"
    table(title, ["model", "parameters", "ms a round", "trained"], rows, digits=2)

    rows = []
    for label, config, dataset, many in (
        ("digits, 25 runs", DIGITS, digits, 100 if options.quick else 2000),
        ("28×28, cnn", IMAGES, images, 10 if options.quick else 100),
    ):
        lockstep = start(config, dataset, 25 if dataset is digits else 1)
        for _ in range(many // 5):
            lockstep.advance()
        before = resident()
        for _ in range(many - many // 5):
            lockstep.advance()
        rows.append([label, many, before, resident(), resident() - before])
        results[f"memory_growth_{'digits' if dataset is digits else 'cnn'}_mib"] = rows[-1][4]
    header = ["", "rounds", "MiB after a fifth of them", "MiB at the end", "growth"]
    table("memory", header, rows, digits=2)
    save(options.save)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
