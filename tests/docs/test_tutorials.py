"""Tutorials run from start to end, and what they say of their numbers holds."""

import subprocess
import sys
from pathlib import Path

import pytest
from tutorials import read_cells, run_tutorial

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", TUTORIALS, ids=lambda script: script.stem)
def test_a_tutorial_runs_and_its_claims_hold(script, tmp_path):
    # Claims are assertions in cells of their own; one process each, as on the site.
    tool = ROOT / "docs" / "tools" / "tutorials.py"
    command = [sys.executable, tool, script, "--to", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / f"{script.stem}.md").read_text("utf-8")
    assert page.startswith("# ")
    assert "```text" in page
    assert "[check]" not in page


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda script: script.stem)
def test_every_tutorial_checks_what_it_says_and_is_in_the_index(script):
    checks = [cell for cell in read_cells(script.read_text("utf-8")) if cell.kind == "check"]
    assert any("assert" in cell.text for cell in checks)
    assert f"({script.stem}.md)" in (ROOT / "docs/tutorials/index.md").read_text("utf-8")
    assert f"tutorials/{script.stem}.md" in (ROOT / "mkdocs.yml").read_text("utf-8")


SCRIPT = '''"""Title."""

# %% [markdown]
# # A page
#
# With *prose*.

# %%
import matplotlib.pyplot as plt

print("printed")
1 + 1

# %% [check]
assert {claim}

# %%
plt.plot([0, 1])
plt.title("A line")
'''


def test_a_page_has_prose_code_values_and_figures_but_no_checks(tmp_path):
    script = tmp_path / "small-one.py"
    script.write_text(SCRIPT.format(claim="True"))
    page = run_tutorial(script, tmp_path / "made").read_text()
    assert page.startswith("# A page\n\nWith *prose*.\n")
    assert "```text\nprinted\n2\n```" in page
    assert "assert" not in page
    assert "![A line](small-one-1.png)" in page
    assert (tmp_path / "made/small-one-1.png").stat().st_size > 0


def test_a_claim_that_does_not_hold_stops_the_run(tmp_path):
    script = tmp_path / "small.py"
    script.write_text(SCRIPT.format(claim="1 > 2"))
    with pytest.raises(AssertionError):
        run_tutorial(script, tmp_path / "made")
