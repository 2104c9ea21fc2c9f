"""Apps as Flower's users write them, with fedcohort's lines added, in simulation and deployment."""

import importlib.util
import json
import pathlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

HERE = pathlib.Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "flower-mnist"
APPS = (
    "torch-quickstart",
    "sklearn-quickstart",
    "node-keys",
    "torch-advanced",
    "app-mods",
    "masked",
)
NODES, SECONDS = 4, 300.0


def loopback_module() -> ModuleType:
    sys.path.insert(0, str(EXAMPLE))
    try:
        spec = importlib.util.spec_from_file_location("loopback", EXAMPLE / "loopback.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(EXAMPLE))


loopback = loopback_module()


def run(federation: Any, app: str, *more: str, config: str = "") -> dict[str, Any]:
    """Run an app to its end, and return what it left."""
    folder = federation.folder
    process = federation.start_run(HERE / "apps" / app, f'folder="{folder}" {config}', *more)
    for _ in loopback.until(SECONDS):
        if process.poll() is not None:
            break
    log = (folder / "run.log").read_text()[-3000:]
    assert process.poll() == 0, f"{app} did not end well:\n{log}"
    left = folder / f"{app}.json"
    assert left.exists(), f"{app} left nothing:\n{log}"
    found: dict[str, Any] = json.loads(left.read_text())
    return found


def check(app: str, found: dict[str, Any], folder: pathlib.Path) -> None:
    assert len(found["cohorts"]) == 2
    size = 3 if app == "masked" else 2
    assert all(len(cohort) == size for cohort in found["cohorts"])
    assert [set(c) for c in found["cohorts"]] == [set(t) for t in found["trained"]]
    if app == "torch-advanced":
        assert (folder / "best.pt").exists()
        assert len((folder / "rounds.log").read_text().splitlines()) == 2
        assert found["best"] > 0
    if app == "app-mods":
        assert {"seconds", "rounds-seen"} <= found["metrics"]["2"].keys()
    if "evaluated" in found:
        assert set(found["evaluated"]) in ({"1", "2"}, set())


@pytest.fixture(scope="module")
def simulation(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:  # noqa: ARG001
    pytest.importorskip("ray")
    with loopback.Federation(tmp_path_factory.mktemp("simulation")) as federation:
        federation.start_superlink("--simulation")
        yield federation


@pytest.mark.parametrize("app", APPS)
def test_in_simulation(simulation: Any, app: str) -> None:
    size = f"num-supernodes={NODES} client-resources-num-cpus=1"
    found = run(simulation, app, "--federation-config", size)
    check(app, found, simulation.folder)
    assert found.get("evaluated", True), "nobody was evaluated"


@pytest.fixture(scope="module")
def deployment(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:  # noqa: ARG001
    with loopback.Federation(tmp_path_factory.mktemp("deployment")) as federation:
        federation.start_superlink()
        federation.start_supernodes(
            [f"partition-id={i} num-partitions={NODES}" for i in range(NODES)]
        )
        yield federation


@pytest.mark.parametrize("app", ["app-mods", "torch-quickstart"])
def test_in_a_deployment(deployment: Any, app: str) -> None:
    # Every message starts a process there: what simulation has shown is left out.
    config = "fraction-evaluate=0.0" if app == "torch-quickstart" else ""
    check(app, run(deployment, app, config=config), deployment.folder)
