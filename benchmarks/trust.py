"""What must not grow: memory with the rounds, and the time to look at a study with its runs.

    python benchmarks/trust.py [--quick] [--json] [--save FILE] [--part memory|looking|instructions]

`memory` does a study of 25 runs in this process and reads its resident set after every round:
the most after a tenth of the rounds against the most at all later ones. `looking` does a study of
many short runs, then times the commands that look at it, each in a process of its own, and what
opening its store takes. `instructions` compiles the kernels for this processor and for what all of
its kind can do (x86-64), and compares the processor time of a round of 25 runs on digits, on one
core: what a wheel with compiled code in it would cost. All on the CPU.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from markdown import add_save, save, table

from fedcohort.simulation import Store
from fedcohort.simulation.execution.runner import prepare_study, run_study
from fedcohort.simulation.study import parse_study

MEMORY = """
[base]
clients = 30
cohort = 5
samples_per_client = 10
rounds = {rounds}
eval_every = 50
selector = ["dp3s", "match", "fedavg", "pow-d", "fedsae"]
seeds = "0..4"
"""
SHORT = """
[base]
clients = 20
cohort = 3
samples_per_client = 10
rounds = 5
eval_every = 5
selector = ["fedavg", "dp3s", "match", "pow-d"]
lr = [0.1, 0.2, 0.3, 0.4, 0.5]
skew = ["1", "H", "0.5", "iid"]
seeds = "0..{last}"
"""


def resident():
    """Return this process's resident set in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def memory(rounds):
    sizes = []
    prepared = prepare_study(parse_study(MEMORY.format(rounds=rounds), "memory"), device="cpu")
    with tempfile.TemporaryDirectory() as folder, Store(folder) as store:
        assert run_study(prepared, store, report=lambda _: sizes.append(resident()))
    early, late = max(sizes[: len(sizes) // 10]), max(sizes[len(sizes) // 10 :])
    header = ["rounds", "MiB, first tenth", "MiB, later", "ratio"]
    table("memory, 25 runs", header, [[rounds, early, late, late / early]])
    return {"memory_ratio": late / early, "memory_mib": late}


def looking(seeds):
    study = parse_study(SHORT.format(last=seeds - 1), "short")
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with Store(folder) as store:
            assert run_study(prepare_study(study, device="cpu"), store)
        doing = time.perf_counter() - began
        began = time.perf_counter()
        Store.existing(folder).close()
        opening = time.perf_counter() - began
        seconds = {}
        for name in ("study status", "report"):
            command = [sys.executable, "-m", "fedcohort", *name.split(), folder]
            began = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            seconds[name.split()[-1]] = time.perf_counter() - began
        size = (Path(folder) / "results.sqlite").stat().st_size / 2**20
    runs = len(study.configs)
    header = ["runs", "MiB", "s to do", "s to open", "s status", "s report"]
    table("looking at many runs", header, [[runs, size, doing, opening, *seconds.values()]])
    return {"runs": runs, "open_s": opening, **{f"{k}_s": v for k, v in seconds.items()}}


ROUNDS = """
import sys, time
import torch
from fedcohort.simulation import RunConfig
from fedcohort.simulation.lockstep import Lockstep
from fedcohort.simulation.materials import Materials
from fedcohort.training.accelerators.c_chain import compiler

compiler._NATIVE = ((sys.argv[1],),)
same = {"lr": 0.05, "epochs": 5, "rounds": 10**6, "eval_every": 10**6, "model": sys.argv[2]}
runs = [RunConfig(dataset="digits", selector="fedavg", seed=seed, **same) for seed in range(25)]
lockstep = Lockstep(runs, Materials(), torch.device("cpu"))
times = []
for _ in range(int(sys.argv[3])):
    began = time.process_time()
    lockstep.advance()
    times.append(time.process_time() - began)
print(min(times))
"""
SETS = ("native", "x86-64-v3")


def instructions(rounds):
    """Return the time with each instruction set, the least of three processes, against native's."""
    rows, results = [], {}
    for model in ("cnn-small", "mlp"):
        times = dict.fromkeys(SETS, float("inf"))
        for name in SETS * 3:
            with tempfile.TemporaryDirectory() as cache:
                done = subprocess.run(
                    [sys.executable, "-c", ROUNDS, f"-march={name}", model, str(rounds)],
                    env=os.environ | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": cache},
                    check=True,
                    capture_output=True,
                    text=True,
                )
            times[name] = min(times[name], float(done.stdout))
        ratios = [times[name] / times["native"] for name in SETS]
        rows.append([model, 1e3 * times["native"], *ratios[1:]])
        results |= {f"{name}_{model}": r for name, r in zip(SETS, ratios, strict=True)}
    header = ["model", "native, ms", *(f"{name} / native" for name in SETS[1:])]
    table("instruction sets", header, rows)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--part", choices=("memory", "looking", "instructions"))
    add_save(parser)
    options = parser.parse_args()
    parts = {
        "memory": lambda: memory(300 if options.quick else 5000),
        "looking": lambda: looking(5 if options.quick else 125),
        "instructions": lambda: instructions(3 if options.quick else 40),
    }
    results = {}
    for name, part in parts.items():
        if options.part in (None, name):
            results |= part()
    save(options.save)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
