"""A real SuperLink and real SuperNodes: one is killed in mid-round, one comes late."""

import importlib.util
import json
import pathlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fedcohort.federation import build_federation, load_dataset

HERE = pathlib.Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "flower-mnist"
CLIENTS = 6
SECONDS = 400.0


def example_module(name: str) -> ModuleType:
    sys.path.insert(0, str(EXAMPLE))
    try:
        spec = importlib.util.spec_from_file_location(name, EXAMPLE / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(EXAMPLE))


loopback = example_module("loopback")


def write_data(folder: pathlib.Path) -> None:
    digits = load_dataset("digits")
    held = build_federation(digits, skew="dirichlet:0.3", clients=CLIENTS, seed=1)
    owner = np.full(len(digits.y_train), -2)
    for client in range(CLIENTS):
        owner[held.partition.of(client)] = client
    x = np.concatenate([digits.x_train, digits.x_test]).reshape(-1, 64).astype(np.float32) / 16
    np.savez(
        folder / "data.npz",
        x=x,
        y=np.concatenate([digits.y_train, digits.y_test]),
        owner=np.concatenate([owner, np.full(len(digits.y_test), -1)]),
    )


def rounds_done(folder: pathlib.Path) -> list[dict[str, Any]]:
    path = folder / "progress.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_until(
    condition: Callable[[], bool], what: str, folder: pathlib.Path, seconds: float = SECONDS
) -> None:
    for _ in loopback.until(seconds):
        if condition():
            return
    log = (folder / "run.log").read_text()[-3000:]
    pytest.fail(f"{what} did not happen in {seconds:g} s; the run's log ends:\n{log}")


def processes_that_know(folder: pathlib.Path) -> list[str]:
    """Return the command lines of all processes whose environment names the folder."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.mark.usefixtures("one_thread")
def test_a_federation_of_processes_survives_a_kill_and_takes_a_late_client(
    tmp_path: pathlib.Path,
) -> None:
    # With keys and certificates; without them apps run in test_apps.py.
    write_data(tmp_path)
    with loopback.Federation(tmp_path, secure=True) as federation:
        federation.start_superlink()
        names = [f"client-{share}" for share in range(CLIENTS - 1)]
        nodes = federation.start_supernodes(
            [f'share={share} fedcohort-id="{name}"' for share, name in enumerate(names)]
        )
        run = federation.start_run(HERE / "digits_app", f'folder="{tmp_path}" selector="match"')
        victim = tmp_path / "victim"
        wait_until(
            lambda: victim.exists() and victim.read_text().endswith("\n"), "round 2", tmp_path
        )
        name = victim.read_text().strip()
        federation.kill(nodes[names.index(name)])
        federation.start_supernodes([f'share={CLIENTS - 1} fedcohort-id="late"'])
        wait_until(lambda: run.poll() is not None, "the end of the run", tmp_path)
        log = (tmp_path / "run.log").read_text()
        assert run.returncode == 0, log[-3000:]
    # What was killed needs a moment to be gone.
    wait_until(lambda: not processes_that_know(tmp_path), "the end of all processes", tmp_path, 60)

    rounds = rounds_done(tmp_path)
    assert name in rounds[1]["cohort"]
    assert rounds[1]["left_out"][name]
    assert all(name not in done["trained"] for done in rounds[1:])
    assert sum(len(done["trained"]) >= 2 for done in rounds) >= 3
    assert all("late" not in done["cohort"] for done in rounds[:2])
    assert any("late" in done["trained"] for done in rounds)
    assert rounds[-1]["accuracy"] > 0.4
    assert (tmp_path / "server.npz").exists()
