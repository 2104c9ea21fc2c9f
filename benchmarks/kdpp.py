"""k-DPP sampling: fedcohort against DPPy, and fedcohort alone on large populations.

    python benchmarks/kdpp.py [--quick] [--mnist] [--json] [--save FILE]

Both get the same profiles and end with the same distribution. Set-up runs from the profiles to the
first draw, which is when DPPy decomposes its kernel and evaluates the polynomials. Times against
DPPy, joins and rebuilds are the best of three, taken in turns (of one with --quick, joins and
rebuilds excepted); preprocessing of a large population is timed once and draws are a mean of 200.
--quick leaves out populations above 10,000; --mnist adds how close low rank comes to exact on
MNIST's profiles, which takes PyTorch and the data.
"""

import argparse
import json
import pathlib
import platform
import resource
import subprocess
import sys
import time

import numpy as np
from dppy.finite_dpps import FiniteDPP
from markdown import add_save, save, table
from scipy.spatial.distance import cdist

from fedcohort.dpp import KDPP, Landmarks

K = 10
Q = 500
GROUPS = 10
LOW_RANK = 128
POPULATION_RANK = 64
JOINING = 1000
REPEATS = 3


def make_profiles(clients: int) -> np.ndarray:
    """Float32 profiles in ten groups, written block by block."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((GROUPS, Q), dtype=np.float32)
    profiles = np.empty((clients, Q), dtype=np.float32)
    for start in range(0, clients, 10_000):
        block = profiles[start : start + 10_000]
        rng.standard_normal(out=block, dtype=np.float32)
        block *= 0.1
        block += centres[rng.integers(GROUPS, size=len(block))]
    return profiles


def seconds(action):
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def ours_exact(profiles):
    sampler = KDPP.from_profiles(profiles, K)
    sampler.sample(np.random.default_rng(0))
    return sampler


def peer_exact(profiles):
    profiles = profiles.astype(np.float64)
    s0 = cdist(profiles, profiles)
    s = 1 - (s0 - s0.min()) / (s0.max() - s0.min())
    sampler = FiniteDPP("likelihood", L=s.T @ s)
    sampler.sample_exact_k_dpp(K, random_state=np.random.RandomState(0))
    return sampler


def ours_low_rank(profiles):
    KDPP.from_profiles(profiles, K, rank=LOW_RANK).sample(np.random.default_rng(0), size=100)


def against_dppy(clients: int, repeats: int) -> dict[str, float]:
    profiles = make_profiles(clients)
    state = np.random.RandomState(1)
    best = dict.fromkeys(["setup", "peer_setup", "draw", "peer_draw", "low_rank"], np.inf)

    def record(name, spent):
        best[name] = min(best[name], spent)

    for _ in range(repeats):
        spent, ours = seconds(lambda: ours_exact(profiles))
        record("setup", spent)
        spent, peer = seconds(lambda: peer_exact(profiles))
        record("peer_setup", spent)
        record("low_rank", seconds(lambda: ours_low_rank(profiles))[0])
    for _ in range(repeats):
        rng = np.random.default_rng(1)
        record("draw", seconds(lambda rng=rng: ours.sample(rng, size=1000))[0] / 1000)
        spent, _ = seconds(
            lambda: [peer.sample_exact_k_dpp(K, random_state=state) for _ in range(30)]
        )
        record("peer_draw", spent / 30)
    peer_100 = best["peer_setup"] + 100 * best["peer_draw"]
    return {
        "setup_s": best["setup"],
        "dppy_setup_s": best["peer_setup"],
        "setup_ratio": best["peer_setup"] / best["setup"],
        "draw_s": best["draw"],
        "dppy_draw_s": best["peer_draw"],
        "draw_ratio": best["peer_draw"] / best["draw"],
        "low_rank_setup_and_100_draws_s": best["low_rank"],
        "dppy_setup_and_100_draws_s": peer_100,
        "low_rank_ratio": peer_100 / best["low_rank"],
    }


def peak_gib() -> float:
    """Peak resident memory of this process.

    Linux hands getrusage's peak on from the process that started this one, so that a small
    population would show the parent's memory; VmHWM begins anew.
    """
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        line = next(row for row in status.read_text().splitlines() if row.startswith("VmHWM"))
        return int(line.split()[1]) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)


def large_population(clients: int) -> dict[str, float]:
    """Preprocessing, a draw, and a join of 1000 clients against building anew."""
    profiles = make_profiles(clients + JOINING)
    present, joining = profiles[:clients], profiles[clients:]
    rng = np.random.default_rng(1)

    preprocessing, sampler = seconds(lambda: KDPP.from_profiles(present, K, rank=POPULATION_RANK))
    first, _ = seconds(lambda: sampler.sample(rng))
    peak = peak_gib()
    single = seconds(lambda: [sampler.sample(rng) for _ in range(200)])[0] / 200
    many = seconds(lambda: sampler.sample(rng, size=200))[0] / 200
    sampler = None

    # What a server keeps: landmarks, and everybody's features with room for those to come.
    landmarks = Landmarks.fit(present, POPULATION_RANK)
    features = np.empty((clients + JOINING, landmarks.width))
    features[:clients] = landmarks.features(present)

    def join():
        features[clients:] = landmarks.features(joining)
        return KDPP.from_features(features, landmarks, K).sample(rng)

    def rebuild():
        return KDPP.from_profiles(profiles, K, rank=POPULATION_RANK).sample(rng)

    joins, rebuilds = [], []
    for _ in range(REPEATS):
        joins.append(seconds(join)[0])
        rebuilds.append(seconds(rebuild)[0])
    joined, rebuilt = min(joins), min(rebuilds)
    return {
        "preprocessing_s": preprocessing + first,
        "profiles_gib": profiles.nbytes / 2**30,
        "peak_gib": peak,
        "draw_s": single,
        "draw_of_many_s": many,
        "join_s": joined,
        "first_join_s": joins[0],
        "rebuild_s": rebuilt,
        "join_ratio": rebuilt / joined,
    }


def closeness_on_mnist(clients: int = 2000) -> dict[str, dict[str, float]]:
    """Σ|π_low − π_exact| / k and the mean GEMD of cohorts, one class a client."""
    import torch

    from fedcohort.federation import build_federation, load_dataset
    from fedcohort.metrics import gemd_of_cohorts
    from fedcohort.profiles import fc1_profiles
    from fedcohort.training.models import build_model
    from fedcohort.training.task import classification

    dataset = load_dataset("mnist")
    federation = build_federation(dataset, skew="1", clients=clients)
    inputs = torch.from_numpy(dataset.x_train).float() / dataset.scale
    model = build_model("cnn", dataset, classification(dataset.classes), seed=0)
    partition = federation.partition
    profiles = fc1_profiles(
        model, inputs, torch.from_numpy(partition.indices), torch.from_numpy(partition.sizes)
    ).numpy()

    def mean_gemd(sampler):
        cohorts = sampler.sample(np.random.default_rng(0), size=4000)
        return float(gemd_of_cohorts(federation.label_counts, cohorts).mean())

    exact = KDPP.from_profiles(profiles, K)
    result = {"exact": {"error": 0.0, "gemd": mean_gemd(exact)}}
    for rank in (32, 64, 128, 256):
        low = KDPP.from_profiles(profiles, K, rank=rank)
        difference = low.inclusion_probabilities() - exact.inclusion_probabilities()
        result[str(rank)] = {"error": float(np.abs(difference).sum() / K), "gemd": mean_gemd(low)}
    return result


def in_a_process_of_its_own(clients: int) -> dict[str, float]:
    """Peak memory is a property of a process."""
    command = [sys.executable, str(pathlib.Path(__file__)), "--population", str(clients)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def shown(time_s: float) -> str:
    return f"{time_s:.2f} s" if time_s >= 1 else f"{time_s * 1e3:.3g} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="end within a minute")
    parser.add_argument("--mnist", action="store_true", help="add the closeness of low rank")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--population", type=int, help=argparse.SUPPRESS)
    add_save(parser)
    options = parser.parse_args()
    if options.population:
        print(json.dumps(large_population(options.population)))
        return

    print(
        f"k = {K}, Q = {Q}; {platform.machine()}, Python {platform.python_version()}, "
        f"NumPy {np.__version__}\n"
    )
    against, compared = [], {}
    for clients in (100, 1000, 3000):
        row = compared[str(clients)] = against_dppy(clients, 1 if options.quick else REPEATS)
        low_rank = f"rank {LOW_RANK}: set-up and 100 draws"
        for what, ours, dppy, ratio in (
            ("set-up", "setup_s", "dppy_setup_s", "setup_ratio"),
            ("a draw", "draw_s", "dppy_draw_s", "draw_ratio"),
            (
                low_rank,
                "low_rank_setup_and_100_draws_s",
                "dppy_setup_and_100_draws_s",
                "low_rank_ratio",
            ),
        ):
            times = [shown(row[key]) for key in (ours, dppy)]
            against.append([clients, what, *times, f"{row[ratio]:.1f}"])
    table("against DPPy", ["C", "", "fedcohort", "DPPy", "ratio"], against)

    grown, populations = [], {}
    for clients in (10_000,) if options.quick else (10_000, 100_000, 1_000_000):
        row = populations[str(clients)] = in_a_process_of_its_own(clients)
        grown.append(
            [
                f"{clients:,}",
                f"{row['preprocessing_s']:.2f} s",
                f"{row['peak_gib']:.2f} GiB",
                f"{row['draw_s'] * 1e3:.2f} ms",
                f"{row['draw_of_many_s'] * 1e3:.2f} ms",
                f"{row['join_s']:.3f} s ({row['first_join_s']:.3f})",
                f"{row['rebuild_s']:.2f} s",
            ]
        )
    heads = ["C", "preprocessing", "peak memory", "one draw", "one of many", "a join", "built anew"]
    table("low rank", heads, grown)
    results = {"against_dppy": compared, "populations": populations}
    if options.mnist:
        results["mnist"] = closeness_on_mnist()
        rows = [[rank, row["error"], row["gemd"]] for rank, row in results["mnist"].items()]
        heads = ["landmarks", r"Σ\|π_low − π_exact\| / k", "mean GEMD of 4000 cohorts"]
        table("closeness of low rank", heads, rows)
    save(options.save)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
