"""What hiding a whole client costs, and how many must stand together until it costs little.

    python benchmarks/client_privacy.py [--quick] [--json] [--part clients|nodes|rounds]

Promises to whole clients (`profile_protects = "client"`), δ = 1e-5. Needs dp-accounting
(`fedcohort[privacy]`), and MNIST for the first two parts. Writes docs/results/privacy-PART.csv.

clients  mean GEMD of cohorts of 10 against ε and the number of clients, 60 samples each, ξ = 1
nodes    the same for 100 nodes that each answer for N clients with data of one kind: the mean of
         their profiles, noised for each of them
rounds   rounds to 85 % training accuracy on digits, 100 clients, ξ = 1, five seeds
"""

import argparse
import csv
import json
import pathlib
import tempfile

import numpy as np
from markdown import table
from privacy import MATERIALS, config, features

from fedcohort import make_selector
from fedcohort.metrics import gemd
from fedcohort.privacy import Promise
from fedcohort.report import wording
from fedcohort.report.summary import summarise
from fedcohort.simulation import RunConfig, Store
from fedcohort.simulation.execution.runner import prepare_study, run_study
from fedcohort.simulation.study import study_of_runs

RESULTS = pathlib.Path(__file__).parent.parent / "docs" / "results"
DELTA, SAMPLES, COHORT = 1e-5, 60, 10
SEEDS: tuple[int, ...] = (0, 1, 2)
DRAWS = 50
EPSILONS = (None, 20.0, 8.0, 4.0, 2.0, 1.0)
SELECTORS = ("dp3s", "match", "kcenter", "ward")
CLIENTS = (100, 1_000, 10_000)
NODES = 100
BEHIND = (1, 3, 10, 30, 100, 300, 1_000)


def clean_profiles(seed, count, samples=SAMPLES):
    """Return profiles without noise [count, q] and label counts, each of one digit in turn."""
    train, _ = features(seed, "private")
    labels = np.asarray(MATERIALS.dataset(config(seed)).y_train)
    digits = np.arange(count) % 10
    held = [np.flatnonzero(labels == digit) for digit in range(10)]
    rng = np.random.default_rng([seed, 2])
    profiles = np.stack([train[rng.choice(held[d], samples)].mean(axis=0) for d in digits])
    return profiles, np.eye(10, dtype=np.int64)[digits] * samples


def mean_gemd(name, profiles, counts, seed):
    selector = make_selector(name).fit(profiles, sizes=counts.sum(axis=1))
    rng = np.random.default_rng(seed)
    cohorts = (selector.select(COHORT, rng=rng).ids for _ in range(DRAWS))
    return np.mean([gemd(counts, ids) for ids in cohorts])


def scores(count, epsilon, behind, selectors):
    """Return the mean GEMD of each selector, for `count` nodes that answer for `behind` each."""
    found = []
    for seed in SEEDS:
        profiles, counts = clean_profiles(seed, count)
        if epsilon is not None:
            sigma = Promise(epsilon, DELTA, "client").noise(SAMPLES) / behind
            rng = np.random.default_rng([seed, 1])
            profiles = profiles + sigma * rng.normal(size=profiles.shape)
        found.append([mean_gemd(name, profiles, counts, seed) for name in selectors])
    return dict(zip(selectors, np.mean(found, axis=0), strict=True))


def by_clients(epsilons):
    rows = []
    for count in CLIENTS:
        # Selectors that compare every client with every other are for small federations.
        chosen = [s for s in SELECTORS if count <= 1_000 or s in ("match", "kcenter")]
        uniform = scores(count, None, 1, ["fedavg"])["fedavg"]
        for epsilon in epsilons:
            found = dict.fromkeys(SELECTORS, "") | scores(count, epsilon, 1, chosen)
            rows.append({"clients": count, "epsilon": epsilon, **found, "fedavg": uniform})
    return rows


def by_nodes(epsilons):
    uniform = scores(NODES, None, 1, ["fedavg"])["fedavg"]
    return [
        {"behind": n, "epsilon": e, **scores(NODES, e, n, SELECTORS), "fedavg": uniform}
        for e in epsilons
        for n in BEHIND
    ]


def rounds(quick):
    epsilons = (None, 8.0) if quick else (None, 20.0, 8.0, 2.0)
    runs = [
        RunConfig(
            dataset="digits",
            lr=0.5,
            rounds=20 if quick else 100,
            selector=selector,
            seed=seed,
            profile_epsilon=e,
            profile_protects="sample" if e is None else "client",
        )
        for selector, options in (("dp3s", epsilons), ("match", epsilons), ("fedavg", (None,)))
        for e in options
        for seed in ((0,) if quick else range(5))
    ]
    with tempfile.TemporaryDirectory() as folder, Store(folder) as store:
        run_study(prepare_study(study_of_runs(runs)), store)
        found = summarise(store, 0.85)
    return [
        {
            "selector": s.config.selector,
            "epsilon": s.config.profile_epsilon,
            "rounds": wording.rounds_reached(s),
            "interval": wording.rounds_interval(s),
            "gemd": s.gemd,
        }
        for s in found
    ]


def shown(column, value):
    if column == "epsilon":
        return "no noise" if value is None else f"{value:g}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, few settings, no files")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parser.add_argument("--part", choices=["clients", "nodes", "rounds"])
    options = parser.parse_args()
    if options.quick:
        global SEEDS
        SEEDS = SEEDS[:1]
    parts = {
        "clients": lambda: by_clients((None, 8.0) if options.quick else EPSILONS),
        "nodes": lambda: by_nodes((8.0,) if options.quick else (8.0, 2.0)),
        "rounds": lambda: rounds(options.quick),
    }
    results = {}
    for name in [options.part] if options.part else parts:
        results[name] = parts[name]()
        cells = [{k: shown(k, v) for k, v in row.items()} for row in results[name]]
        table(name, list(cells[0]), [list(row.values()) for row in cells])
        if not options.quick:
            path = RESULTS / f"privacy-{name}.csv"
            with path.open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, cells[0], lineterminator="\n")
                writer.writeheader()
                writer.writerows(cells)
            print(f"\nwrote {path}")
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
