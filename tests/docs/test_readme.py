"""What the README tells a stranger to type works, and its links lead somewhere."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_python_lines_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    short = BLOCKS[0].replace("seeds=range(5)", "seeds=range(1), rounds=3, progress=False")
    assert short != BLOCKS[0]
    exec(compile(short, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("match", "dp3s", "fedavg", "gemd"))
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_the_flower_lines_call_what_there_is():
    pytest.importorskip("flwr")
    from fedcohort import flower

    (imported, *lines) = ast.parse(BLOCKS[1]).body
    assert all(hasattr(flower, name.name) for name in imported.names)
    used = {n.id for line in lines for n in ast.walk(line) if isinstance(n, ast.Name)}
    assert {name.name for name in imported.names} <= used


def test_links_lead_to_files():
    links = re.findall(r"\]\(([^)#\s]+)", README)
    inside = [link for link in links if not link.startswith("http")]
    assert len(inside) > 15
    assert [link for link in inside if not (ROOT / link).exists()] == []


def test_the_commands_are_targets_of_the_makefile():
    targets = re.findall(r"^make (\S+)", README, re.MULTILINE)
    assert targets == ["demo", "test"]
    assert all(f"\n{target}:" in (ROOT / "Makefile").read_text() for target in targets)


def test_it_is_read_in_two_minutes():
    prose = re.sub(r"```.*?```|<!--.*?-->|^\|.*?$", "", README, flags=re.DOTALL | re.MULTILINE)
    assert len(prose.split()) < 700
