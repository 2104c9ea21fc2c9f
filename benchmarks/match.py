"""How close cohorts come to everyone's label mixture: `match` against the others, and its parts.

    python benchmarks/match.py [--quick] [--json] [--save FILE] [--part NAME]

Needs MNIST and Fashion-MNIST (`fedcohort data fetch`). No training: profiles of initial models,
cohorts drawn from them, and the GEMD of those cohorts. C=100 clients, cohorts of 10, three
partitions of three seeds, 50 draws each, unless a row says otherwise. Only the part `renewed`
trains, and needs CIFAR-10 too: it asks whether profiles of a trained model would be better ones.
"""

import argparse
import copy
import functools
import json
import time

import numpy as np
import torch
from markdown import add_save, save, table

from fedcohort import Match, make_selector, simulate
from fedcohort.metrics import gemd, participation_variation
from fedcohort.profiles.fc1 import find_layer
from fedcohort.selection import Need, coordinates
from fedcohort.simulation import RunConfig
from fedcohort.simulation.device_data import load_device_data
from fedcohort.simulation.materials import Materials

SEEDS = (0, 1, 2)
SKEWS = ("0.5", "0.8", "H", "1", "dirichlet:0.1")
SELECTORS = {
    "fedavg": ("fedavg", {}),
    "dp3s": ("dp3s", {}),
    "kcenter": ("kcenter", {}),
    "ward": ("ward", {}),
    "gemd-oracle": ("gemd-oracle", {}),
    "match": ("match", {}),
    "match, strict": ("match", {"evenness": "strict"}),
    "match, free": ("match", {"evenness": "free"}),
}


MATERIALS = Materials()


@functools.cache
def outputs(name, seed, layer, init):
    """Return one layer's outputs [N, Q] of the initial model on every training sample."""
    config = RunConfig(dataset=name, seed=seed, init=init)
    x, _ = load_device_data(MATERIALS.dataset(config), config, torch.device("cpu")).train
    if layer == "input":
        return x.flatten(1).double().numpy()
    return _seen(MATERIALS.model(config), x, layer, lambda _inputs, output: output.flatten(1))


def _seen(model, x, layer, pick):
    """Return what one layer puts out or takes in, of every sample [N, Q]."""
    seen = []
    hook = find_layer(model, layer).register_forward_hook(lambda _m, i, o: seen.append(pick(i, o)))
    with torch.no_grad():
        for part in torch.split(x, 2000):
            model(part)
    hook.remove()
    return torch.cat(seen).numpy()


def federation(name, seed, skew, layer="fc1", init="default", **options):
    """Return profiles [C, Q] and label counts [C, N]."""
    built = MATERIALS.federation(RunConfig(dataset=name, seed=seed, skew=skew, **options))
    values = outputs(name, seed, layer, init)[built.partition.indices]
    sums = np.add.reduceat(values, built.partition.offsets[:-1], axis=0, dtype=np.float64)
    return (sums / built.sizes[:, None]).astype(np.float32), built.label_counts


def measure(name, skew, selector, *, k=10, draws=100, **options):
    """Return mean GEMD of the first 50 cohorts and the participation variation after all."""
    kind, parameters = selector
    scores, variations = [], []
    for seed in SEEDS:
        profiles, counts = federation(name, seed, skew, **options)
        made = make_selector(kind, **parameters)
        made.fit(profiles, sizes=counts.sum(1), label_counts=counts)
        rng = np.random.default_rng(seed)
        cohorts = [made.select(k, rng=rng).ids for _ in range(draws)]
        scores += [gemd(counts, cohort) for cohort in cohorts[:50]]
        chosen = np.bincount(np.concatenate(cohorts), minlength=len(counts))
        variations.append(participation_variation(chosen))
    return float(np.mean(scores)), float(np.mean(variations))


def gemd_tables(names):
    results = {}
    for name in names:
        found = {
            label: {skew: measure(name, skew, selector) for skew in SKEWS}
            for label, selector in SELECTORS.items()
        }
        results[name] = found
        for place, title in enumerate(("mean GEMD", "participation variation after 100 rounds")):
            rows = [[label, *(cells[s][place] for s in SKEWS)] for label, cells in found.items()]
            table(f"{name}: {title}", ["selector", *(f"ξ={s}" for s in SKEWS)], rows)
    return results


def ablations(names):
    cases = (("H", {}), ("1", {}), ("dirichlet:0.1", {}), ("H", {"samples_per_client": 20}))
    settings = [(name, skew, options) for name in names for skew, options in cases]
    header = [f"{n} {s}{' n=20' if o else ''}" for n, s, o in settings]
    variants = {
        "match": {},
        "without whitening": {"whiten": False},
        "greedy": {"search": "greedy"},
        "best of 100 random": {"search": "best-of-100"},
    }
    rows = [
        [label, *(measure(n, s, ("match", p), draws=50, **o)[0] for n, s, o in settings)]
        for label, p in variants.items()
    ]
    table("parts of the rule", ["", *header], rows)
    ridges(settings, header)
    herding(settings, header)
    plain = [(name, skew) for name in names for skew in ("H", "1")]
    columns = [f"{n} {s}" for n, s in plain]

    def row(label, **options):
        return [label, *(measure(n, s, ("match", {}), draws=50, **options)[0] for n, s in plain)]

    layers = {"input mean": "input", "conv2": "conv2", "fc1": "fc1", "logits": "fc2"}
    rows = [row(label, layer=layer) for label, layer in layers.items()]
    table("where the profile is read", ["layer", *columns], rows)
    inits = ("default", "xavier-normal", "xavier-uniform", "kaiming-normal", "kaiming-uniform")
    table("initialisation", ["", *columns], [row(i, init=i) for i in inits])
    table("cohort size", ["K", *columns], [row(str(k), k=k) for k in (5, 10, 20, 50)])
    sizes = (10, 20, 50, 100, 300, 540)
    rows = [row(str(n), samples_per_client=n) for n in sizes]
    table("samples a client", ["n", *columns], rows)
    drift(names)


def ridges(settings, header):
    """Vary how many directions count: a ridge of 0 whitens all 64, a large one only a few."""
    usual, rows = coordinates._RIDGE, []
    for ridge in (0.0, 0.3, 1.0, usual, 10.0, 100.0):
        coordinates._RIDGE = ridge
        found = [measure(n, s, ("match", {}), draws=50, **o)[0] for n, s, o in settings]
        rows.append([f"{ridge:g}", *found])
    coordinates._RIDGE = usual
    table("the ridge, in units of λ_2k", ["ridge", *header], rows)


class Herding(Match):
    """Carries a share of past cohorts' residuals into the next choice; tried, and not kept."""

    share = 0.0

    def _coordinates(self, rows, k):
        points = super()._coordinates(rows, k)
        self.residual = getattr(self, "residual", np.zeros(points.shape[1]))
        return points + self.share * self.residual

    def _choose(self, k, rows, rng):
        cohort = super()._choose(k, rows, rng)
        points = super()._coordinates(self._roster.rows(cohort.ids), k)
        self.residual = self.share * self.residual + cohort.weights @ points
        return cohort


def herding(settings, header):
    """Measure GEMD of single cohorts, and of five consecutive ones averaged."""
    rows = []
    for share in (0.0, 0.5, 0.9):
        single, pooled = [], []
        for name, skew, options in settings:
            scores, means = [], []
            for seed in SEEDS:
                profiles, counts = federation(name, seed, skew, **options)
                selector = Herding()
                selector.share = share
                selector.fit(profiles, sizes=counts.sum(1))
                rng = np.random.default_rng(seed)
                cohorts = [selector.select(10, rng=rng).ids for _ in range(100)]
                scores += [gemd(counts, cohort) for cohort in cohorts]
                mixtures = np.array([counts[c].sum(0) / counts[c].sum() for c in cohorts])
                off = mixtures - counts.sum(0) / counts.sum()
                means += [np.abs(off[t : t + 5].mean(0)).sum() for t in range(96)]
            single.append(float(np.mean(scores)))
            pooled.append(float(np.mean(means)))
        rows += [[f"{share:g}, one cohort", *single], [f"{share:g}, five averaged", *pooled]]
    table("herding: share of the residual carried over", ["share", *header], rows)


def drift(names, rounds=100):
    """A client a round moves to other data; profiles are sent anew every R rounds."""
    rows = []
    for every in (1, 5, 10, 25, 50, rounds):
        cells = []
        for name in names:
            scores = []
            for seed in SEEDS:
                before, counts = federation(name, seed, "H")
                after, moved = federation(name, seed, "H", samples_per_client=500)
                order = np.random.default_rng(seed).permutation(len(counts))
                profiles, counts = before.copy(), counts.copy()
                selector = make_selector("match").fit(profiles, sizes=counts.sum(1))
                rng = np.random.default_rng(seed)
                for t in range(rounds):
                    client = order[t]
                    profiles[client], counts[client] = after[order[t - 1]], moved[order[t - 1]]
                    if t % every == every - 1:
                        selector.tell(Need.PROFILE, np.arange(len(counts)), profiles)
                    scores.append(gemd(counts, selector.select(10, rng=rng).ids))
            cells.append(float(np.mean(scores)))
        rows.append([str(every) if every < rounds else "never", *cells])
    table("drifting clients, ξ=H", ["refreshed every R rounds", *names], rows)


def renewed(names, rounds=20):
    """Read profiles from models that have trained in the federation, and from two layers."""
    skews = ("H", "1", "dirichlet:0.1")
    header, columns = [f"{n} {s}" for n in names for s in skews], []
    for name in names:
        model = "cnn-cifar" if name == "cifar-10" else "cnn"
        for skew in skews:
            shared = {"dataset": name, "model": model, "skew": skew, "samples_per_client": 100}
            config = RunConfig(**shared)
            run = simulate(
                selectors=["fedavg"],
                rounds=rounds,
                eval_every=rounds,
                epochs=2,
                batch_size=50,
                lr=0.05,
                progress=False,
                **shared,
            )
            first, trained = MATERIALS.model(config), copy.deepcopy(MATERIALS.model(config))
            trained.load_state_dict(run.models["fedavg", 0])
            built = MATERIALS.federation(config)
            x, _ = load_device_data(MATERIALS.dataset(config), config, torch.device("cpu")).train
            cells = [_gemd_of("gemd-oracle", np.zeros((100, 1)), built.label_counts)]
            for used in (first, trained):
                for read in (_before_relu, _before_output):
                    seen = read(used, x[torch.from_numpy(built.partition.indices)])
                    profiles = seen.reshape(100, 100, -1).mean(1).astype(np.float32)
                    cells.append(_gemd_of("match", profiles, built.label_counts))
            columns.append(cells)
    labels = ["told the labels (gemd-oracle)"]
    for when in ("first model", f"after {rounds} rounds"):
        labels += [f"{when}, first fully connected layer", f"{when}, input of the output layer"]
    rows = [
        [label, *cells] for label, cells in zip(labels, zip(*columns, strict=True), strict=True)
    ]
    table("profiles of a trained model", ["profiles", *header], rows)


def _before_relu(model, x):
    return _seen(model, x, "fc1", lambda _inputs, output: output)


def _before_output(model, x):
    return _seen(model, x, "fc2", lambda inputs, _output: inputs[0])


def _gemd_of(kind, profiles, counts):
    made = make_selector(kind).fit(profiles, sizes=counts.sum(1), label_counts=counts)
    rng = np.random.default_rng(0)
    return float(np.mean([gemd(counts, made.select(10, rng=rng).ids) for _ in range(100)]))


def speed(populations):
    """Time draws on synthetic profiles of ten kinds of clients."""
    rows, results = [], {}
    for clients in populations:
        rng = np.random.default_rng(0)
        centres = rng.normal(size=(10, 500)).astype(np.float32)
        profiles = centres[np.arange(clients) % 10]
        profiles += 0.3 * rng.standard_normal((clients, 500), dtype=np.float32)
        counts = np.eye(10)[np.arange(clients) % 10]
        began = time.perf_counter()
        selector = make_selector("match").fit(profiles)
        selector.select(10, rng=rng)
        ready = time.perf_counter() - began
        cells = []
        for k in (10, 100, 1000):
            if k > clients // 10:
                cells.append("–")
                continue
            selector.select(k, rng=rng)
            times, scores = [], []
            for _ in range(10):
                began = time.perf_counter()
                ids = selector.select(k, rng=rng).ids
                times.append(time.perf_counter() - began)
                scores.append(gemd(counts, ids))
            results[f"C={clients} K={k}"] = float(np.median(times))
            cells.append(f"{1000 * np.median(times):.1f} ms, {np.mean(scores):.3f}")
        rows.append([f"{clients:,}", f"{ready:.1f} s", *cells])
    table("a draw and its GEMD, Q=500", ["C", "first draw", "K=10", "K=100", "K=1000"], rows)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="MNIST and small populations only")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--part", choices=("gemd", "ablation", "renewed", "speed"))
    add_save(parser)
    options = parser.parse_args()
    names = ("mnist",) if options.quick else ("mnist", "fashion-mnist")
    results = {}
    if options.part in (None, "gemd"):
        results["gemd"] = gemd_tables(names)
    if options.part in (None, "ablation") and not options.quick:
        ablations(names)
    if options.part == "renewed":
        renewed(("mnist", "fashion-mnist", "cifar-10"))
    if options.part in (None, "speed"):
        results["seconds"] = speed((1000, 100_000) if options.quick else (1000, 100_000, 1_000_000))
    save(options.save)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
