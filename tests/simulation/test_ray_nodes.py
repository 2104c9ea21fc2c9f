"""A real Ray cluster on this machine that loses nodes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from store_contents import contents

from fedcohort.simulation import Store
from fedcohort.simulation.execution.runner import prepare_study, run_study
from fedcohort.simulation.study import read_study

pytest.importorskip("ray")

STUDY = """
[base]
clients = 10
cohort = 3
rounds = 30
samples_per_client = 30
selector = ["dp3s", "clustered", "fedavg"]
[[part]]
[[part]]
model = "mlp"
skew = "H"
[[part]]
rounds = 12
seeds = "3..4"
"""
HERE = Path(__file__).parent


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "ray.toml"
    path.write_text(STUDY)
    return path


def do(study, folder, what):
    done = subprocess.run(
        [sys.executable, HERE / "ray_study.py", study, folder, what],
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_study_that_loses_a_node_ends_with_the_rows_of_one_process(study, tmp_path):
    found = do(study, tmp_path / "ray", "lost")
    assert found["finished"]
    assert any("is lost" in sentence for sentence in found["said"])
    assert found["resumed"], "the lost group did not resume from its last save"
    with Store(tmp_path / "here") as store:
        assert run_study(prepare_study(read_study(study), device="cpu"), store)
    assert contents(tmp_path / "ray") == contents(tmp_path / "here")


def test_a_study_without_any_node_waits_says_so_and_can_be_stopped(study, tmp_path):
    found = do(study, tmp_path / "ray", "gone")
    assert not found["finished"]
    assert any("has no machine" in sentence for sentence in found["said"])
    assert found["held"] == 0, "somebody still holds a group"
