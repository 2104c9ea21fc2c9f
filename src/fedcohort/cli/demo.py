"""The demo: match and the paper's four selectors on data that every installation has."""

from pathlib import Path

from fedcohort.cli.run import run_and_show
from fedcohort.simulation import RunConfig
from fedcohort.simulation.scores import Target

SELECTORS = ("match", "dp3s", "clustered", "fedavg", "fedsae")
SEEDS = range(5)
TARGET = Target(0.8)


def run_demo(out: Path, *, json: bool, device: str) -> None:
    """Train on digits at ξ=1, print the comparison and write the report."""
    configs = [
        RunConfig(
            dataset="digits",
            skew="1",
            clients=50,
            cohort=10,
            selector=selector,
            rounds=100,
            lr=0.5,
            seed=seed,
        )
        for selector in SELECTORS
        for seed in SEEDS
    ]
    run_and_show(configs, out, target=TARGET, json=json, device=device, html=True)
