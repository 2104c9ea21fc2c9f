"""What profiles reveal and what hiding it costs: attacks, GEMD and rounds against ε.

    python benchmarks/privacy.py [--quick] [--json] [--save FILE]
                                 [--part leak|gemd|design|rounds|figure]

Needs MNIST (`fedcohort data fetch mnist`) and dp-accounting (`fedcohort[privacy]`). 100 clients,
cohorts of 10, 600 samples a client (some samples go to two clients, since the digit 5 has only
5421), δ = 1e-5 for each sample, three seeds.

leak    a label-mixture reconstruction and a membership inference attack on profiles
gemd    mean GEMD of 50 cohorts a seed
design  the parts of the mechanism at ε = 8 and 2: how wide the projection, which centre
rounds  rounds to 85 % training accuracy, five seeds (a multilayer perceptron, E=1, B=54, lr .1)
figure  writes docs/img/privacy.png from the first two
"""

import argparse
import functools
import json
import pathlib
import tempfile

import numpy as np
import torch
from markdown import add_save, save, table
from scipy.optimize import nnls
from scipy.stats import norm, rankdata

from fedcohort import make_selector
from fedcohort.metrics import gemd
from fedcohort.privacy import Promise, noise_multiplier
from fedcohort.profiles import fc1_profiles, private
from fedcohort.report import wording
from fedcohort.report.summary import summarise
from fedcohort.simulation import RunConfig, Store
from fedcohort.simulation.device_data import load_device_data
from fedcohort.simulation.execution.runner import prepare_study, run_study
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.study import study_of_runs

SEEDS: tuple[int, ...] = (0, 1, 2)
SIZE, DELTA = 600, 1e-5
EPSILONS = (20.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.1)
SKEWS = ("1", "H", "0.5", "dirichlet:0.1")
SELECTORS = ("dp3s", "match", "kcenter", "ward")
CPU = torch.device("cpu")
MATERIALS = Materials()


@functools.cache
def config(seed, skew="1", size=SIZE):
    return RunConfig(dataset="mnist", seed=seed, skew=skew, samples_per_client=size, reuse=True)


@functools.cache
def features(seed, kind):
    """Return what each sample adds to a profile: of the training and of the test part, [n, q]."""
    model = MATERIALS.model(config(seed))
    data = load_device_data(MATERIALS.dataset(config(seed)), config(seed), CPU)
    measure = fc1_profiles if kind == "plain" else private.bounded_profiles
    found = []
    for x, _ in (data.train, data.test):
        one_each = torch.ones(len(x), dtype=torch.int64)
        found.append(np.asarray(measure(model, x, torch.arange(len(x)), one_each), np.float64))
    return found


def clients(seed, skew, kind, size=SIZE):
    """Return profiles without noise [C, q] and label counts [C, N]."""
    built = MATERIALS.federation(config(seed, skew, size))
    train, _ = features(seed, kind)
    profiles = np.stack([train[built.partition.of(c)].mean(axis=0) for c in range(len(built))])
    return profiles, built.label_counts


def noised(profiles, epsilon, seed, size=SIZE):
    scale = 0.0 if epsilon is None else Promise(epsilon, DELTA).noise(size)
    return profiles + scale * np.random.default_rng([seed, 1]).normal(size=profiles.shape)


# -- attacks -----------------------------------------------------------------------------------


def reconstruct(profiles, public, labels, variance):
    """Guess label mixtures [C, N] from profiles, with labelled data of the same kind.

    The likeliest mixture under f ~ N(Σ p_j μ_j, W / n + σ² I), W the mean covariance within a
    class: weighted least squares over mixtures.
    """
    means = np.stack([public[labels == j].mean(axis=0) for j in range(10)])
    within = np.cov((public - means[labels]).T) / SIZE + variance * np.eye(public.shape[1])
    values, vectors = np.linalg.eigh(within)
    whiten = vectors / np.sqrt(np.maximum(values, 1e-9 * values.max()))
    system = np.vstack([(means @ whiten).T, np.full(10, 1e4)])
    guesses = np.array([nnls(system, np.append(f @ whiten, 1e4))[0] for f in profiles])
    return guesses / guesses.sum(axis=1, keepdims=True)


def total_variation(guesses, truth):
    return float(np.abs(guesses - truth).sum(axis=1).mean() / 2)


def reconstruction_error(skew, kind, epsilon):
    errors = []
    for seed in SEEDS:
        profiles, counts = clients(seed, skew, kind)
        variance = 0.0 if epsilon is None else Promise(epsilon, DELTA).noise(SIZE) ** 2
        labels = MATERIALS.dataset(config(seed)).y_test
        guesses = reconstruct(
            noised(profiles, epsilon, seed), features(seed, kind)[1], labels, variance
        )
        errors.append(total_variation(guesses, counts / counts.sum(axis=1, keepdims=True)))
    return float(np.mean(errors))


def blind_error(skew):
    """Return the error of who guesses everyone's mixture for every client."""
    errors = []
    for seed in SEEDS:
        counts = clients(seed, skew, "private")[1]
        mixtures = counts / counts.sum(axis=1, keepdims=True)
        errors.append(total_variation(mixtures.mean(axis=0), mixtures))
    return float(np.mean(errors))


def membership(epsilon, pairs=200_000):
    """Attack one sample of a client, knowing the model, all its other samples and both candidates.

    Returns the area under the curve and the largest TPR − FPR of the likelihood ratio test between
    a sample of the training set and one of the test set, over random pairs, and the largest
    TPR − FPR that any attack can have on any pair.
    """
    multiplier = noise_multiplier(epsilon, DELTA)
    rng = np.random.default_rng(0)
    ratios = []
    for seed in SEEDS:
        train, test = features(seed, "private")
        count = pairs // len(SEEDS)
        gap = (
            train[rng.integers(len(train), size=count)] - test[rng.integers(len(test), size=count)]
        )
        # In units of the noise; the sensitivity is a gap of 2.
        lengths = np.linalg.norm(gap, axis=1) / (2 * multiplier)
        ratios.append(lengths * (rng.normal(size=(2, count)) + [[0.5], [-0.5]] * lengths))
    inside, outside = np.concatenate(ratios, axis=1)
    everything = np.concatenate([inside, outside])
    area = (rankdata(everything)[: len(inside)].sum() / len(inside) - (len(inside) + 1) / 2) / len(
        outside
    )
    thresholds = np.quantile(everything, np.linspace(0, 1, 500))
    advantage = max((inside > t).mean() - (outside > t).mean() for t in thresholds)
    return float(area), float(advantage), float(2 * norm.cdf(0.5 / multiplier) - 1)


def leak():
    rows, results = [], {}
    blind = {skew: blind_error(skew) for skew in SKEWS}
    for label, kind, epsilon in [
        ("plain profile (the paper's)", "plain", None),
        ("bounded, no noise", "private", None),
        *((f"ε = {e:g}", "private", e) for e in EPSILONS),
    ]:
        errors = {skew: reconstruction_error(skew, kind, epsilon) for skew in SKEWS}
        member = (1.0, 1.0, 1.0) if epsilon is None else membership(epsilon)
        results[label] = {"epsilon": epsilon, "mixture": errors, "membership": member}
        rows.append([label, *errors.values(), *member])
    rows.append(["guessing everyone's mixture", *blind.values(), 0.5, 0.0, 0.0])
    header = ["", *(f"TV ξ={s}" for s in SKEWS), "AUC", "TPR − FPR", "its bound"]
    table("what an attacker learns", header, rows)
    return {"attacks": results, "blind": blind}


# -- what it costs -----------------------------------------------------------------------------


def mean_gemd(selector, profiles, counts, seed, draws=50):
    made = make_selector(selector).fit(profiles, sizes=counts.sum(axis=1))
    rng = np.random.default_rng(seed)
    return float(np.mean([gemd(counts, made.select(10, rng=rng).ids) for _ in range(draws)]))


def gemd_of(selector, skew, kind, epsilon, size=SIZE):
    scores = []
    for seed in SEEDS:
        profiles, counts = clients(seed, skew, kind, size)
        scores.append(mean_gemd(selector, noised(profiles, epsilon, seed, size), counts, seed))
    return float(np.mean(scores))


def costs(quick):
    results = {}
    settings = [("1", SIZE), ("H", SIZE)] if quick else [("1", SIZE), ("H", SIZE), ("1", 100)]
    for skew, size in settings:
        rows = []
        for label, kind, epsilon in [
            ("plain profile", "plain", None),
            ("bounded, no noise", "private", None),
            *((f"ε = {e:g}", "private", e) for e in EPSILONS),
        ]:
            scores = [gemd_of(s, skew, kind, epsilon, size) for s in SELECTORS]
            rows.append([label, *scores])
            results[f"ξ={skew} n={size} {label}"] = dict(zip(SELECTORS, scores, strict=True))
        title = f"mean GEMD, MNIST ξ={skew}, {size} samples a client"
        table(title, ["", *SELECTORS], rows)
    return results


def design():
    """Vary the projection and the centre, which the mechanism has fixed."""
    usual, centre = private.DIRECTIONS, private._centre
    rows = []
    try:
        for centred in (True, False):
            if not centred:
                private._centre = lambda *a: torch.zeros_like(centre(*a))
            for width in (8, 16, 32, 64, 128, 500):
                private.DIRECTIONS = width
                features.cache_clear()
                scores = [
                    gemd_of(selector, skew, "private", epsilon)
                    for skew, selector in (("1", "dp3s"), ("1", "match"), ("H", "match"))
                    for epsilon in (8.0, 2.0)
                ]
                rows.append(["noise inputs" if centred else "none", str(width), *scores])
    finally:
        private.DIRECTIONS, private._centre = usual, centre
        features.cache_clear()
    cells = ("dp3s ξ=1", "match ξ=1", "match ξ=H")
    header = ["centre", "width", *(f"{c}, ε={e}" for c in cells for e in (8, 2))]
    table("GEMD by design", header, rows)
    return rows


def rounds_to_target(quick):
    epsilons = (None, 8.0) if quick else (None, 8.0, 2.0, 1.0, 0.5)
    base = RunConfig(
        dataset="mnist",
        model="mlp",
        samples_per_client=SIZE,
        reuse=True,
        rounds=10 if quick else 60,
        batch_size=54,
        eval_samples=10_000,
        profile_delta=DELTA,
    )
    runs = [
        RunConfig(**(vars(base) | {"selector": s, "profile_epsilon": e, "seed": seed}))
        for s, options in (("dp3s", epsilons), ("match", epsilons), ("fedavg", (None,)))
        for e in options
        for seed in ((0,) if quick else range(5))
    ]
    with tempfile.TemporaryDirectory() as folder, Store(folder) as store:
        run_study(prepare_study(study_of_runs(runs), materials=MATERIALS), store)
        found = summarise(store, 0.85)
    rows = [
        [
            s.label,
            wording.rounds_reached(s),
            wording.rounds_interval(s),
            s.gemd,
        ]
        for s in found
    ]
    table("rounds to 85 %, MNIST ξ=1", ["", "mean curve", "95 % interval", "GEMD"], rows)
    return {row[0]: row[1:] for row in rows}


def figure(leaks, cost):
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(8, 4), layout="constrained")
    left, right = drawn.subplots(1, 2)
    attacks = [a for a in leaks["attacks"].values() if a["epsilon"]]
    for skew in SKEWS:
        hidden = [min(1.0, a["mixture"][skew] / leaks["blind"][skew]) for a in attacks]
        left.plot([a["epsilon"] for a in attacks], hidden, marker="o", label=f"mixture, ξ={skew}")
    kept = [1 - a["membership"][1] for a in attacks]
    left.plot([a["epsilon"] for a in attacks], kept, "k--", marker="s", label="membership")
    left.set(ylabel="hidden (1: a blind guess is as good)", ylim=(0, 1.05))
    for selector in SELECTORS:
        scores = [cost[f"ξ=1 n={SIZE} ε = {e:g}"][selector] for e in EPSILONS]
        right.plot(EPSILONS, scores, marker="o", label=selector)
    right.set(ylabel="GEMD, MNIST ξ=1")
    for axes in (left, right):
        axes.set(xscale="log", xlabel="ε for each sample, n = 600, δ = 1e-5")
        axes.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
        axes.minorticks_off()
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    path = pathlib.Path(__file__).parent.parent / "docs" / "img" / "privacy.png"
    drawn.savefig(path, dpi=100)
    print(f"\nwrote {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, fewer settings")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parser.add_argument("--part", choices=["leak", "gemd", "design", "rounds", "figure"])
    add_save(parser)
    options = parser.parse_args()
    if options.quick:
        global SEEDS
        SEEDS = SEEDS[:1]
    results = {}
    if options.part in (None, "leak", "figure"):
        results["leak"] = leak()
    if options.part in (None, "gemd", "figure"):
        results["gemd"] = costs(options.quick)
    if options.part == "figure":
        figure(results["leak"], results["gemd"])
    if options.part == "design" or (options.part is None and not options.quick):
        results["design"] = design()
    if options.part == "rounds" or (options.part is None and not options.quick):
        results["rounds"] = rounds_to_target(options.quick)
    save(options.save)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
