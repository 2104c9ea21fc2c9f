"""What must not grow: memory with the rounds, and the time to look at a study with its runs.

    python benchmarks/trust.py [--quick] [--json]

`memory` does a study of 25 runs in this process and reads its resident set after every round:
the most after a tenth of the rounds against the most at all later ones. `looking` does a study of
many short runs, then times the commands that look at it, each in a process of its own, and what
opening its store takes. On the CPU.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from markdown import table

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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = memory(300 if options.quick else 5000)
    results |= looking(5 if options.quick else 125)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
