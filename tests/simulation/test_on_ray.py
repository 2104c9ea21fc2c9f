"""The same groups on a real, local Ray."""

import os
import subprocess
import sys

from store_contents import contents

DO = """
import sys
from pathlib import Path
from fedcohort.simulation import Store
from fedcohort.simulation.driver import Worker, load_datasets
from fedcohort.simulation.engine import find_device
from fedcohort.simulation.ledger import Ledger
from fedcohort.simulation.on_ray import work_on_ray
from fedcohort.simulation.packing import packer
from fedcohort.simulation.study import parse_study

study = parse_study('''
[base]
clients = 10
cohort = 3
rounds = 3
selector = ["dp3s", "clustered"]
[[part]]
[[part]]
skew = "H"
rounds = 2
''', "ray.toml")
datasets = load_datasets(study.configs)
for engine in ("ray", "local"):
    with Store(Path(sys.argv[1]) / engine) as store:
        ledger = Ledger(store)
        ledger.enter(study, packer(datasets, find_device("cpu")))
        names = ledger.groups_of(study.configs)
        if engine == "ray":
            assert work_on_ray(ledger, names, datasets, "cpu", 2)
        else:
            assert Worker(ledger, datasets, find_device("cpu")).work(names)
"""


def test_a_study_on_ray_gives_the_same_rows(tmp_path):
    # In a process of its own with one thread, as Ray's have.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", DO, tmp_path],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")
