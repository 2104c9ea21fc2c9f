"""Thirty SIGKILLs among two workers change no row."""

import subprocess
import sys
from pathlib import Path

from store_contents import contents

STUDY = """
name = "small"
[base]
clients = 8
cohort = 3
samples_per_client = 20
rounds = 16
eval_every = 8
lr = 0.3
selector = ["dp3s", "clustered", "match"]
[[part]]
name = "one class"
[[part]]
name = "two classes"
skew = "H"
rounds = 12
[[part]]
name = "mlp"
model = "mlp"
rounds = 10
"""
HERE = Path(__file__).parent


def test_thirty_kills_among_two_workers_change_nothing(tmp_path, one_thread):
    (tmp_path / "small.toml").write_text(STUDY)
    done = subprocess.run(
        [sys.executable, HERE / "killed_workers.py", tmp_path / "small.toml", tmp_path, "30", "0"],
        env=one_thread,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    died, saved = done.stdout.split()
    assert int(died) >= 30
    assert 0.1 < float(saved) < 1, "nothing was resumed, or nothing was left to do"
    assert contents(tmp_path / "killed") == contents(tmp_path / "undisturbed")
    assert not list((tmp_path / "killed" / "checkpoints").iterdir()), "something was left behind"
