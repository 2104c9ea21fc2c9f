import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("fedcohort")


@pytest.fixture
def fedcohort(tmp_path):
    """Run the real command in an empty folder."""

    def run(*arguments, **environment):
        return subprocess.run(
            [COMMAND, *map(str, arguments)],
            cwd=tmp_path,
            env=os.environ | {"COLUMNS": "80"} | environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run
