"""Studies, as a user does them."""

import contextlib
import json
import re
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
from store_contents import contents

from fedcohort.simulation import Store
from fedcohort.simulation.groups import group_states

from .conftest import COMMAND

STUDIES = Path(__file__).parents[2] / "studies"
SMALL = """
[base]
clients = 10
cohort = 3
rounds = 6
lr = 0.3
target = 0.2
[[part]]
name = "one class"
selector = ["dp3s", "clustered"]
seeds = "0..1"
[[part]]
name = "two classes"
selector = "fedavg"
skew = "H"
rounds = 4
"""


@pytest.fixture
def small(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    return ("study", "run", "small.toml")


@pytest.fixture
def one_thread(monkeypatch):
    # Several workers on few cores would otherwise get fewer threads than one alone.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.usefixtures("one_thread")
def test_a_full_disk_is_one_sentence_and_other_workers_go_on(fedcohort, small, tmp_path):
    def little_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (90_000, 90_000))

    full = subprocess.run(
        [COMMAND, *small, "--out", "shared"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=little_room,
    )
    assert full.returncode == 2, full.stderr
    (error,) = [line for line in full.stderr.splitlines() if line.startswith("Error: ")]
    assert re.search(r"shared.* cannot be written .* same command again", error)
    assert "Traceback" not in full.stderr
    with Store.existing(tmp_path / "shared") as store:
        assert len(group_states(store)) == 2
        assert not any(group.holder for group in group_states(store))
    two = fedcohort(*small, "--out", "shared", "--workers", "2")
    assert two.returncode == 0, two.stderr
    assert re.search(r"dp3s +>6", two.stdout)
    one = fedcohort(*small, "--out", "alone")
    assert one.returncode == 0, one.stderr
    assert contents(tmp_path / "shared") == contents(tmp_path / "alone")


def test_a_study_that_stops_in_time_says_so_and_that_it_changed(warm_fedcohort, small, tmp_path):
    late = warm_fedcohort(*small, "--stop-after", "0")
    assert late.returncode == 3, late.stderr
    assert "to resume: fedcohort study run small.toml --stop-after 0" in late.stderr
    before = json.loads(warm_fedcohort("study", "status", "fedcohort-out", "--json").stdout)
    assert [part["left"] for part in before["parts"]] == [4, 1]
    assert before["seconds_left"] is None
    (tmp_path / "small.toml").write_text(SMALL.replace('"0..1"', '"1..2"'))
    done = warm_fedcohort(*small, "--part", "one class")
    assert done.returncode == 0, done.stderr
    assert "2 runs are added; 2 that it does not name any more stay" in done.stderr
    assert "ξ = 1" in done.stdout
    assert "ξ = H" not in done.stdout
    status = warm_fedcohort("study", "status", "fedcohort-out")
    assert re.search(r"one class +4 of 4 +0 +100.0 %", status.stdout)
    assert re.search(r"two classes +0 of 1 +0 +0.0 %", status.stdout)
    # They were to train beside the others, and do.
    assert re.search(r"named by no study any more\) +2 of 2 +0", status.stdout)
    # More seeds of one rule, without a copy of the file.
    more = warm_fedcohort(*small, "--part", "two classes", "--selector", "match", "--seeds", "7..8")
    assert more.returncode == 0, more.stderr
    with Store.existing(tmp_path / "fedcohort-out") as store:
        done = {(c.selector, c.seed) for c in store.configs() if store.is_done(c.key)}
    assert done >= {("match", 7), ("match", 8)}


WRONG = {
    "no file": (["study", "run", "nothing.toml"], r"nothing\.toml"),
    "setting": (["study", "run", "bad.toml"], r"bad\.toml, \[base\]: .*did you mean 'rounds'"),
    "part": (["study", "run", "good.toml", "--part", "gods"], "did you mean 'good'"),
    "selector": (
        ["study", "run", "good.toml", "--selector", "matsch"],
        "in place of the study's: .*did you mean 'match'",
    ),
    "seeds": (["study", "run", "good.toml", "--seeds", "9..0"], "--seeds '9..0' runs backwards"),
    "engine": (["study", "run", "good.toml", "--engine", "spark"], "local or ray"),
    "log": (["study", "run", "good.toml", "--log", "paper"], "tensorboard:FOLDER or mlflow:URI"),
    "no study": (["study", "status", "nothing"], "no results in"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_studies_are_one_sentence_and_exit_code_2(case, warm_fedcohort, tmp_path):
    (tmp_path / "bad.toml").write_text("[base]\nround = 3")
    (tmp_path / "good.toml").write_text("[base]\nrounds = 3")
    before = sorted(tmp_path.rglob("*"))
    arguments, complaint = WRONG[case]
    done = warm_fedcohort(*arguments)
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(r"Error: [^\n]+\n", done.stderr), done.stderr
    assert re.search(complaint, done.stderr), done.stderr
    assert sorted(tmp_path.rglob("*")) == before, "something was left behind"


def test_the_smoke_study_is_killed_goes_on_and_is_shown(
    fedcohort, warm_fedcohort, figures, tmp_path
):
    command = ("study", "run", STUDIES / "smoke.toml", "--out", "smoke")
    started = subprocess.Popen(
        [COMMAND, *command], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not _begun(tmp_path / "smoke"):
        # To look all the time would take it half of the cores.
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(0.05)
            break
    started.send_signal(signal.SIGKILL)
    assert started.wait() == -signal.SIGKILL
    done = fedcohort(*command)
    assert done.returncode == 0, done.stderr
    status = json.loads(warm_fedcohort("study", "status", "smoke", "--json").stdout)
    assert status["finished"]
    assert {part["part"]: part["done"] for part in status["parts"]} == {
        "one class a client": 10,
        "two classes a client": 10,
        "milder skews": 20,
        "profiling methods": 6,
        "initialisations": 16,
    }
    drawn = figures("smoke")
    assert drawn.returncode == 0, drawn.stderr
    names = {Path(line).stem for line in drawn.stdout.splitlines()}
    assert names == {
        "accuracy", "gemd", "profiling", "profiles", "kernels", "initialisations"
    }  # fmt: skip
    report = warm_fedcohort("report", "smoke")
    assert report.returncode == 0, report.stderr
    page = (tmp_path / "smoke" / "report.html").read_text()
    assert "rounds to 50 %" in page
    assert "rounds to 60 %" in page


def _begun(folder):
    """Tell whether a study that may not exist yet has begun its first group."""
    if not (folder / "results.sqlite").is_file():
        return False
    try:
        with Store.existing(folder) as store:
            return bool(store.configs())
    except Exception:
        return False
