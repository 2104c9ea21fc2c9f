import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("fedcohort")
WARM = Path(__file__).with_name("warm.py")
FIGURES = Path(__file__).parents[2] / "studies" / "figures.py"


@pytest.fixture
def fedcohort(tmp_path):
    """Run the real command in an empty folder."""
    return _runs_in(tmp_path, COMMAND)


@pytest.fixture(scope="session")
def _warm_process():
    with subprocess.Popen(
        [sys.executable, WARM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def warm_fedcohort(tmp_path, _warm_process):
    """Run the command in an empty folder, in a fork of a process that has imported it."""

    def run(*arguments, **environment):
        request = {
            "folder": str(tmp_path),
            "arguments": [str(argument) for argument in arguments],
            "environment": dict(os.environ) | {"COLUMNS": "80"} | environment,
        }
        _warm_process.stdin.write(json.dumps(request) + "\n")
        _warm_process.stdin.flush()
        code = int(_warm_process.stdout.readline())
        said = (
            tmp_path.with_name(f"{tmp_path.name}.{name}").read_text() for name in ("out", "err")
        )
        return subprocess.CompletedProcess(arguments, code, *said)

    return run


@pytest.fixture
def figures(tmp_path):
    """Run the script that draws the paper's figures, in the same folder."""
    return _runs_in(tmp_path, sys.executable, FIGURES)


def _runs_in(folder, *command):
    def run(*arguments, **environment):
        return subprocess.run(
            [*command, *map(str, arguments)],
            cwd=folder,
            env=os.environ | {"COLUMNS": "80"} | environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run
