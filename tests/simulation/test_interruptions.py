"""Studies that are killed, run out of disk or are shared end as if nothing had happened."""

import subprocess
import sys
from pathlib import Path

import pytest
from store_contents import contents

STUDY = """
name = "small"
[base]
clients = 8
cohort = 3
samples_per_client = 20
rounds = 40
eval_every = 20
lr = 0.3
selector = ["dp3s", "clustered", "fedsae", "match"]
[[part]]
name = "one class"
[[part]]
name = "two classes"
skew = "H"
rounds = 10
"""
HERE = Path(__file__).parent


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(STUDY)
    return path


def test_ten_kills_change_nothing(study, tmp_path, one_thread):
    done = subprocess.run(
        [sys.executable, HERE / "interrupted_study.py", study, tmp_path, "10", "0"],
        env=one_thread,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    died, left = done.stdout.split()
    assert died == "10"
    assert float(left) < 0.9, "nothing was resumed"
    assert contents(tmp_path / "killed") == contents(tmp_path / "undisturbed")
    assert not list((tmp_path / "killed" / "checkpoints").iterdir()), "something was left behind"
