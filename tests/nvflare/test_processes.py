"""Real jobs: NVFlare's simulator, and a provisioned federation of which one site is killed."""

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from digits_jobs import make_job
from poc import Federation, until

import fedcohort
from fedcohort.adapters.checkpoint import Checkpoint
from fedcohort.randomness import generator
from fedcohort.selection import make_selector

HERE = pathlib.Path(__file__).parent
SOURCE = str(pathlib.Path(fedcohort.__file__).parents[1])
SITES, COHORT = 4, 2


def write_data(folder: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(SITES), [80, 100, 120, 140])
    y = (owner * 2 + rng.integers(0, 3, len(owner))) % 10
    x = rng.normal(size=(10, 64))[y] + 0.3 * rng.normal(size=(len(owner), 64))
    np.savez(folder / "data.npz", x=x.astype(np.float32), y=y, owner=owner)


def accuracy(folder: pathlib.Path) -> float:
    saved = Checkpoint.load(folder / "server.npz")
    assert saved is not None
    with np.load(folder / "data.npz") as file:
        guess = (file["x"] @ saved.model["w"] + saved.model["b"]).argmax(1)
        return float((guess == file["y"]).mean())


def rounds_done(folder: pathlib.Path) -> list[dict[str, Any]]:
    path = folder / "progress.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(what: Callable[[], bool], name: str, folder: pathlib.Path, seconds: float) -> None:
    for _ in until(seconds):
        if what():
            return
    log = (folder / "server.log").read_text()[-3000:]
    pytest.fail(f"{name} did not happen in {seconds:g} s; the server's log ends:\n{log}")


def test_a_job_in_the_simulator_chooses_as_the_selector_does(tmp_path: pathlib.Path) -> None:
    write_data(tmp_path)
    # In a process of its own: NVFlare's simulator leaves threads and loggers behind.
    script = (
        "import sys; from digits_jobs import make_job; "
        "make_job(sys.argv[1], clients=4, num_clients=2, num_rounds=3, selector='match', seed=5,"
        " task_check_period=0.1, checkpoint=sys.argv[1] + '/server.npz')"
        ".simulator_run(sys.argv[1] + '/workspace', n_clients=4, threads=4)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "PYTHONPATH": f"{SOURCE}:{HERE / 'digits_job'}",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    with np.load(tmp_path / "data.npz") as file:
        means = [file["x"][file["owner"] == site].mean(0) for site in range(SITES)]
        sizes = np.bincount(file["owner"])
    selector = make_selector("match").fit(np.array(means), sizes=sizes)
    expected = []
    for number in (1, 2, 3):
        cohort = selector.select(COHORT, np.arange(SITES), rng=generator(5, "selection", number))
        expected.append([f"site-{client + 1}" for client in cohort.ids])
    assert [done["cohort"] for done in rounds_done(tmp_path)] == expected
    assert accuracy(tmp_path) > 0.6


def test_a_federation_of_processes_survives_a_kill_and_resumes(tmp_path: pathlib.Path) -> None:
    write_data(tmp_path)
    settings = {
        "num_clients": COHORT,
        "num_rounds": 5,
        "selector": "match",
        "deadline": 12,
        "task_check_period": 0.1,
        "checkpoint": str(tmp_path / "server.npz"),
    }
    for name, hang in (("first", 2), ("second", 0)):
        job = make_job(tmp_path, clients=SITES, hang_in_round=hang, name=name, **settings)
        job.export_job(str(tmp_path / "jobs"))
    with Federation(tmp_path, SITES, SOURCE) as federation:
        for participant in ("server", *federation.sites):
            federation.start(participant)
        session = federation.session(180)
        job_id = session.submit_job(str(tmp_path / "jobs" / "first"))
        mark = tmp_path / "victim"
        wait_for(lambda: mark.exists() and mark.read_text().endswith("}"), "round 2", tmp_path, 180)
        victim = json.loads(mark.read_text())["site"]
        federation.kill(victim)
        wait_for(lambda: len(rounds_done(tmp_path)) >= 3, "round 3", tmp_path, 180)
        session.abort_job(job_id)

        federation.start(victim)
        session.submit_job(str(tmp_path / "jobs" / "second"))
        wait_for(
            lambda: bool(rounds_done(tmp_path)) and rounds_done(tmp_path)[-1]["round"] == 5,
            "the last round",
            tmp_path,
            180,
        )
        session.close()

    rounds = rounds_done(tmp_path)
    assert [done["round"] for done in rounds] == [1, 2, 3, 4, 5]
    assert victim in rounds[1]["cohort"]
    assert rounds[1]["left_out"] == {victim: "it did not answer in time"}
    assert victim not in rounds[2]["cohort"], "it is left alone for a while"
    assert len(rounds[1]["trained"]) == 1
    assert all(len(done["trained"]) == COHORT for done in rounds[3:])
    assert accuracy(tmp_path) > 0.6
