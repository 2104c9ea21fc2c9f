"""The command answers at once: what takes long to load is loaded by the work that needs it."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "pandas", "matplotlib", "sklearn", "jinja2", "scipy.sparse", "scipy.special")


def test_help_loads_nothing_heavy():
    code = (
        "import sys\nfrom fedcohort.cli import main\nsys.argv = ['fedcohort', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage" in found.stdout
    assert found.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("missing", ["typer", "torch"])
def test_a_package_that_is_not_there_is_named_with_the_extra(missing, tmp_path):
    code = (
        f"import sys\nfrom fedcohort.cli import main\nsys.modules[{missing!r}] = None\n"
        "sys.argv = ['fedcohort', 'run']\nmain()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert ran.returncode == 2
    assert "Error: the command needs the simulator's packages" in ran.stderr
    assert missing in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not list(tmp_path.iterdir())
