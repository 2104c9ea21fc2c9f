"""The command answers at once: what takes long to load is loaded by the work that needs it."""

import subprocess
import sys

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
