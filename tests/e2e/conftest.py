import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("fedcohort")
FIGURES = Path(__file__).parents[2] / "studies" / "figures.py"


@pytest.fixture
def fedcohort(tmp_path):
    """Run the real command in an empty folder."""
    return _runs_in(tmp_path, COMMAND)


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
