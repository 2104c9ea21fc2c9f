"""Try an installed fedcohort: ``python smoke.py [EXTRAS]``, from a folder without its sources."""

import sys
from importlib.resources import files

import numpy as np

import fedcohort
from fedcohort import list_selectors, make_selector


def core() -> None:
    """Choose a cohort by every selector that goes by profiles, and find the files that ship."""
    profiles = np.random.default_rng(0).normal(size=(50, 16))
    samples_per_client = np.full(50, 100)
    for name in ("match", "dp3s", "ward", "kcenter"):
        selector = make_selector(name).fit(profiles, sizes=samples_per_client)
        cohort = selector.select(10, rng=np.random.default_rng(0))
        assert len(set(cohort.ids.tolist())) == 10, name
    assert len(list_selectors()) >= 14
    package = files("fedcohort")
    assert (package / "training/accelerators/c_chain/chain.c").is_file()
    assert (package / "report/templates/report.html").is_file()
    assert (package / "py.typed").is_file()


def simulator() -> None:
    """Compare two selectors for a few rounds."""
    results = fedcohort.simulate(selectors=["match", "fedavg"], rounds=5, progress=False)
    gemd = results.rounds.groupby("selector").gemd.mean()
    assert gemd["match"] < gemd["fedavg"]


if __name__ == "__main__":
    extras = sys.argv[1].split(",") if len(sys.argv) > 1 else []
    core()
    if "sim" in extras:
        simulator()
    if "flower" in extras:
        from fedcohort.flower import CohortStrategy

        assert CohortStrategy.__doc__
    if "privacy" in extras:
        from fedcohort.privacy import Promise

        assert 0 < Promise(8).noise(600) < 1
    sys.stdout.write(f"fedcohort {fedcohort.__version__} works: {', '.join(['core', *extras])}\n")
