"""The same groups on a real, local Ray."""

import os
import subprocess
import sys

from store_contents import contents

DO = """
import sys
from pathlib import Path
from fedcohort.simulation import Store
from fedcohort.simulation.execution.here import here
from fedcohort.simulation.execution.on_ray import OnRay
from fedcohort.simulation.execution.runner import prepare_study, run_study
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
for name, executor in (("ray", OnRay(2)), ("here", here)):
    with Store(Path(sys.argv[1]) / name) as store:
        assert run_study(prepare_study(study, device="cpu"), store, executor)
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
    assert contents(tmp_path / "ray") == contents(tmp_path / "here")
