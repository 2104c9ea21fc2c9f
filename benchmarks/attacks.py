"""What liars do to cohorts, with and without the guard.

    python benchmarks/attacks.py [--quick] [--json] [--save FILE] [--part gemd|alarms|updates]

Needs MNIST (`fedcohort data fetch`). 100 clients, cohorts of 10, MNIST ξ=1, profiles of initial
models, 5 seeds × 40 cohorts; liars are drawn anew for each seed. Two measures:

- honest GEMD: the true label mixture of the cohort's honest clients against the true mixture of
  all 100, which is the same with and without an attack. Liars count as nothing: their places are
  lost, and one place lost of ten costs .2 at ξ=1. (A cohort without an honest client counts 2, the
  most that GEMD can be.)
- places: the share of places that liars get.

alarms   honest clients that the guard leaves out, over data sets and skews
updates  the check of profiles against updates: training, found liars and false alarms
"""

import argparse
import dataclasses
import json
from typing import Any

import numpy as np
import torch
from liars import ATTACKS
from markdown import add_save, save, table
from match import MATERIALS, federation, outputs

from fedcohort import make_selector
from fedcohort.metrics import gemd
from fedcohort.selection import Need
from fedcohort.selection.fedavg import FedAvg
from fedcohort.selection.guard import agreement, forged
from fedcohort.selection.registry import register
from fedcohort.simulation import RunConfig
from fedcohort.simulation.lockstep import Lockstep

SEEDS: tuple[int, ...] = (0, 1, 2, 3, 4)
SELECTORS = ("dp3s", "match", "kcenter", "ward")


def honest_gemd(counts, liars, cohort):
    honest = np.setdiff1d(cohort, liars)
    return gemd(counts, honest) if len(honest) else 2.0


def measure(selector, attack, draws=40, **options):
    """Return the mean honest GEMD and the liars' share of places."""
    count, change = attack
    scores, places = [], []
    for seed in SEEDS:
        profiles, counts = federation("mnist", seed, "1")
        rng = np.random.default_rng([seed, 2])
        liars = np.sort(rng.choice(len(counts), count, replace=False))
        received = change(profiles.astype(np.float64), liars, rng)
        made = make_selector(selector, **options).fit(received, sizes=counts.sum(axis=1))
        draw = np.random.default_rng(seed)
        for _ in range(draws):
            cohort = made.select(10, rng=draw).ids
            scores.append(honest_gemd(counts, liars, cohort))
            places.append(np.isin(cohort, liars).mean())
    return float(np.mean(scores)), float(np.mean(places))


def gemd_tables():
    results = {}
    clean = {s: measure(s, (0, lambda p, *_: p))[0] for s in SELECTORS}
    guarded = {s: measure(s, (0, lambda p, *_: p), guard="profiles")[0] for s in SELECTORS}
    rows = [["no attack", *(f"{clean[s]:.3f} → {guarded[s]:.3f}" for s in SELECTORS)]]
    places = []
    for name, attack in ATTACKS.items():
        without = {s: measure(s, attack) for s in SELECTORS}
        within = {s: measure(s, attack, guard="profiles") for s in SELECTORS}
        rows.append([name, *(f"{without[s][0]:.3f} → {within[s][0]:.3f}" for s in SELECTORS)])
        places.append([name, *(f"{without[s][1]:.2f} → {within[s][1]:.2f}" for s in SELECTORS)])
        results[name] = {s: {"off": without[s], "profiles": within[s]} for s in SELECTORS}
    table("honest GEMD, guard off → profiles", ["attack", *SELECTORS], rows)
    table("liars' share of places, guard off → profiles", ["attack", *SELECTORS], places)
    return {"clean": clean, "attacks": results}


def alarms(names):
    cases: list[tuple[str, dict[str, Any]]] = [
        ("1", {}),
        ("H", {}),
        ("0.5", {}),
        ("iid", {}),
        ("shards:2", {}),
        ("dirichlet:0.1", {}),
        ("1", {"size_spread": 1.0}),
        ("dirichlet:0.1", {"size_spread": 1.0}),
    ]
    rows = []
    for skew, options in cases:
        cells = []
        for name in names:
            flags = []
            for seed in SEEDS[:3]:
                config = RunConfig(dataset=name, seed=seed, skew=skew, **options)
                built = MATERIALS.federation(config)
                values = outputs(name, seed, "fc1", "default")[built.partition.indices]
                sums = np.add.reduceat(values, built.partition.offsets[:-1], axis=0)
                flags.append(forged(sums / built.sizes[:, None], built.sizes.astype(float)).mean())
            cells.append(float(np.mean(flags)))
        rows.append([f"{skew}{', unequal sizes' if options else ''}", *cells])
    table("share of honest clients left out", ["skew", *names], rows)
    return rows


@register("spy")
@dataclasses.dataclass(kw_only=True, eq=False)
class Spy(FedAvg):
    """Uniform cohorts, of which every update is kept."""

    needs = frozenset({Need.PROFILE, Need.UPDATE})

    def observe(self, outcome):
        self.seen = getattr(self, "seen", {})
        for client, update in zip(outcome.ids, outcome.updates, strict=True):
            bias = update[-10:].astype(np.float64)
            self.seen.setdefault(int(client), []).append(bias / np.linalg.norm(bias))


def updates(quick):
    rows = []
    for skew in ("1", "H") if quick else ("1", "H", "0.5", "dirichlet:0.1"):
        equal: dict[str, Any] = {"samples_per_client": 100}
        options = {} if skew.startswith("dirichlet") else equal
        config = RunConfig(
            dataset="mnist", skew=skew, selector="spy", model="mlp", rounds=60, batch_size=54,
            eval_every=100, eval_samples=100, **options,
        )  # fmt: skip
        lockstep = Lockstep([config], MATERIALS, torch.device("cpu"))
        for rounds in (10, 30):
            while lockstep.round < rounds:
                lockstep.advance()
            run: Any = lockstep._members[0]
            # What came of the last round is heard in another thread: wait for it.
            seen = run.listening().seen
            ids = np.array(sorted(seen))
            changes = np.array([np.mean(seen[i], axis=0) for i in ids])
            profiles = run.profiles[ids].astype(np.float64)
            counts = run.federation.label_counts[ids]
            mixtures = counts / counts.sum(axis=1, keepdims=True)
            found, false = [], []
            for trial in range(20):
                rng = np.random.default_rng(trial)
                order = rng.permutation(len(ids))
                liars, models = order[:10], order[10:20]
                lied = profiles.copy()
                lied[liars] = profiles[models]
                scores = agreement(lied, changes)
                apart = np.abs(mixtures[liars] - mixtures[models]).sum(axis=1) / 2 > 0.3
                found += list(scores[liars][apart] < 0)
                false += list(np.delete(scores, liars) < 0)
            rows.append(
                [skew, str(rounds), str(len(ids)), float(np.mean(found)), float(np.mean(false))]
            )
    header = ["ξ", "rounds", "clients seen", "liars found", "honest accused"]
    table("profiles against updates: 10 liars send another client's profile", header, rows)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, fewer settings")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parser.add_argument("--part", choices=["gemd", "alarms", "updates"])
    add_save(parser)
    options = parser.parse_args()
    if options.quick:
        global SEEDS
        SEEDS = SEEDS[:1]
    results = {}
    if options.part in (None, "gemd"):
        results["gemd"] = gemd_tables()
    if options.part in (None, "alarms"):
        names = ("mnist", "digits") if options.quick else ("mnist", "fashion-mnist", "digits")
        results["alarms"] = alarms(names)
    if options.part == "updates" or (options.part is None and not options.quick):
        results["updates"] = updates(options.quick)
    save(options.save)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
