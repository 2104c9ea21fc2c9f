"""How fast residual networks train: against the plain loop and peers, equal and unequal clients.

    python benchmarks/models.py [--quick] [--json] [--save FILE]

On a GPU: ResNet-18 and ResNet-8 (GroupNorm), 10 clients of 500 images 3×32×32 each, batches of 50,
one pass, 10 runs at once, bfloat16; milliseconds per run-round of local training. On a CPU:
ResNet-8, one run, 10 clients of 100 images. Unequal clients hold the same total, log-normal with
spread 1. The loop is the text-book one, in float32; where it is run on a part of the clients, its
time is scaled up to all of them.

On a CPU besides: whole rounds of ResNet-8 on CIFAR-10 (made-up images where it is not there), 10
of 100 clients of 100 images, batches of 50, against the plain loop, Flower's simulation and
pfl-research, which all must reach the same test accuracy (see side_by_side.py). Measure on an idle
machine.
"""

import argparse
import dataclasses
import json
import time

import numpy as np
import torch
from markdown import add_save, save, table
from side_by_side import compared, ours, ours_again, task_of, with_peers

from fedcohort.errors import FedcohortError
from fedcohort.federation import Dataset, load_dataset
from fedcohort.simulation import RunConfig
from fedcohort.simulation.materials import Materials
from fedcohort.training.accelerators.choice import choose_trainer
from fedcohort.training.architectures.resnet import resnet8, resnet18
from fedcohort.training.modules import named_state
from fedcohort.training.problem import Jobs, LocalProblem, LocalWork
from fedcohort.training.sequential import SEQUENTIAL
from fedcohort.training.task import classification

SHAPE, CLASSES, BATCH = (3, 32, 32), 10, 50
POOL = 20_000
ROUNDS = RunConfig(
    dataset="images",
    skew="iid",
    samples_per_client=100,
    selector="fedavg",
    batch_size=BATCH,
    lr=0.05,
    model="resnet8",
)


def problem_of(factory, sizes, runs, device):
    """Return local trainings of clients of these sizes, on made-up images."""
    torch.manual_seed(0)
    x = torch.randn(POOL, *SHAPE, device=device)
    y = torch.randint(0, CLASSES, (POOL,), device=device)
    models = [factory(SHAPE, CLASSES) for _ in range(runs)]
    states = [dict(named_state(model)) for model in models]
    stacked = {n: torch.stack([s[n].detach() for s in states]).to(device) for n in states[0]}
    sizes = torch.as_tensor(sizes)
    count = len(sizes)
    starts = torch.from_numpy(np.random.default_rng(1).integers(0, POOL - int(sizes.max()), count))
    jobs = Jobs(
        model=torch.arange(count) % runs,
        start=starts,
        size=sizes,
        key=torch.arange(count) * 7919,
        passes=torch.ones(count, dtype=torch.float64),
    )
    return LocalProblem(
        models[0].to(device),
        stacked,
        jobs,
        (x, y),
        torch.arange(POOL, device=device),
        LocalWork(BATCH, 0.05),
        classification(CLASSES),
    )


def unequal(total, count):
    """Return log-normal sizes that sum up to `total`."""
    share = np.random.default_rng(0).lognormal(0, 1.0, count)
    sizes = np.maximum(1, (share / share.sum() * total).astype(int))
    sizes[0] += total - sizes.sum()
    return sizes.tolist()


def seconds(train, problem, repeats):
    """Return the shortest time of some trainings, after one that warms up."""
    best = []
    for turn in range(repeats + 1):
        began = time.perf_counter()
        train(problem)
        if problem.device.type == "cuda":
            torch.cuda.synchronize()
        if turn:
            best.append(time.perf_counter() - began)
    return min(best)


def measured(name, factory, size, clients, runs, device, repeats):
    """Return milliseconds per run-round: the loop's, ours, and ours with unequal clients."""
    equal = problem_of(factory, [size] * clients * runs, runs, device)
    apart = problem_of(factory, unequal(size * clients * runs, clients * runs), runs, device)
    trainer = choose_trainer(equal, "bfloat16" if device.type == "cuda" else "float32")
    few = dataclasses.replace(equal, jobs=equal.jobs[:2])
    loop = seconds(SEQUENTIAL.train, few, 1) / 2 * clients
    ours, uneven = (seconds(trainer.train, p, repeats) / runs for p in (equal, apart))
    found = {"loop": 1e3 * loop, "ours": 1e3 * ours, "unequal": 1e3 * uneven}
    return {f"{name}_{key}_ms": value for key, value in found.items()} | {
        f"{name}_ratio": loop / ours,
        f"{name}_unequal_ratio": uneven / ours,
    }, trainer.name


def against_peers(quick):
    """Return seconds per round of whole rounds on two cores, and ratios."""
    materials = Materials({"images": images(1000 if quick else 10_000)})
    seconds, cohorts, state = ours(ROUNDS, materials, 3 if quick else 8)
    task = task_of(ROUNDS, materials, cohorts)
    found = ours_again(with_peers(task, (seconds, state), pfl=True), ROUNDS, materials)
    title = "ResNet-8, 10 × 100 images 3×32×32, B=50, whole rounds"
    timed = compared(title, task, found)
    rows = [
        [name, f"{1e3 * timed[f'{name}_s']:.0f}", f"{timed.get(f'over_{name}', 1.0):.2f} ×"]
        for name in found
    ]
    table(title, ["", "ms a round", "× ours"], rows)
    return {f"resnet8_round_{name}": value for name, value in timed.items()}


def images(tested):
    """Return CIFAR-10 with so many test images, or made-up images of that shape."""
    try:
        given = load_dataset("cifar-10")
        x, y, x_test, y_test = given.x_train, given.y_train, given.x_test, given.y_test
    except (FedcohortError, OSError):
        print("CIFAR-10 is not here; made-up images instead")
        rng = np.random.default_rng(0)
        centres = rng.integers(0, 256, (CLASSES, *SHAPE))
        y = rng.integers(0, CLASSES, POOL)
        x = np.clip(centres[y] + rng.normal(0, 120, (POOL, *SHAPE)), 0, 255).astype(np.uint8)
        x, y, x_test, y_test = x[:10_000], y[:10_000], x[10_000:], y[10_000:]
    return Dataset("images", x, y, x_test[:tested], y_test[:tested], CLASSES, scale=255.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    add_save(parser)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cases = {"resnet8": (resnet8, 100, 10, 1)}
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        cases = {"resnet18": (resnet18, 500, 10, 10), "resnet8": (resnet8, 500, 10, 10)}
    results, rows = {}, []
    for name, (factory, size, clients, runs) in cases.items():
        repeats = 1 if options.quick else 3
        found, trainer = measured(name, factory, size, clients, runs, device, repeats)
        results |= found
        figures = [found[f"{name}_{key}_ms"] for key in ("loop", "ours", "unequal")]
        ratios = [found[f"{name}_ratio"], found[f"{name}_unequal_ratio"]]
        cells = [f"{figure:.1f}" for figure in figures] + [f"{ratio:.2f} ×" for ratio in ratios]
        rows.append([name, trainer, *cells])
    heads = ["model", "trainer", "loop, ms", "ours, ms", "unequal, ms", "loop / ours"]
    table("Local training, milliseconds per run-round", [*heads, "unequal / equal"], rows)
    if device.type == "cpu":
        results |= against_peers(options.quick)
    save(options.save)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
