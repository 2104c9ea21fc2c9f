"""Run a tutorial and write its page: ``python docs/tools/tutorials.py SCRIPT... --to FOLDER``.

A tutorial is a Python script in cells, which editors and Jupytext know too. ``# %% [markdown]``
opens a cell of comments that become prose, ``# %%`` one of code, and ``# %% [check]`` one of
assertions about what the prose says, which runs and is not shown. Under each cell of code the page
has what it printed, the value of its last line, and the figures it drew.
"""

import argparse
import ast
import contextlib
import dataclasses
import io
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

_HEAD = re.compile(r"^# %%(?: \[(\w+)\])?$")


@dataclasses.dataclass(frozen=True)
class Cell:
    """A part of a tutorial: what kind, from which line (counted from 0), and its text."""

    kind: str
    line: int
    text: str


def read_cells(script: str) -> list[Cell]:
    """Cut a script into its cells; what stands before the first is left out."""
    lines = script.splitlines()
    heads = [
        (n, found[1] or "code") for n, line in enumerate(lines) if (found := _HEAD.match(line))
    ]
    ends = [n for n, _ in heads[1:]] + [len(lines)]
    cells = []
    for (n, kind), end in zip(heads, ends, strict=True):
        body = lines[n + 1 : end]
        if kind == "markdown":
            body = [re.sub(r"^# ?", "", line) for line in body]
        cells.append(Cell(kind, n + 1, "\n".join(body).strip("\n")))
    return cells


def run_tutorial(script: Path, to: Path) -> Path:
    """Run a tutorial from start to end and write its page and figures; return the page."""
    to.mkdir(parents=True, exist_ok=True)
    for old in to.glob(f"{script.stem}-*.png"):
        old.unlink()
    parts = []
    with _as_module(script) as module:
        for cell in read_cells(script.read_text("utf-8")):
            if cell.kind == "markdown":
                parts.append(cell.text)
                continue
            shown = _run(cell, script, module)
            if cell.kind == "code":
                parts.append(f"```python\n{cell.text}\n```")
                parts += [f"```text\n{shown}\n```"] if shown else []
                parts += _figures(script.stem, to)
    parts.append(f"*This page was made by running [{script.name}]({script.name}).*")
    page = to / f"{script.stem}.md"
    page.write_text("\n\n".join(parts) + "\n", "utf-8")
    return page


@contextlib.contextmanager
def _as_module(script: Path) -> Iterator[types.ModuleType]:
    """Yield a module that knows its file, so that what is defined in it can be looked up."""
    module = types.ModuleType(script.stem.replace("-", "_"))
    module.__file__ = str(script)
    sys.modules[module.__name__] = module
    try:
        yield module
    finally:
        del sys.modules[module.__name__]


def _run(cell: Cell, script: Path, module: types.ModuleType) -> str:
    """Run a cell and return what it printed, and the value of its last line."""
    tree = ast.parse("\n" * cell.line + cell.text, str(script))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, str(script), "exec"), vars(module))
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), str(script), "eval"), vars(module))
            # Axes are seen as a figure.
            if value is not None and not hasattr(value, "figure"):
                print(value)
    return printed.getvalue().rstrip()


def _figures(stem: str, to: Path) -> list[str]:
    """Save and close what was drawn; return the lines that show it."""
    shown = []
    for number in plt.get_fignums():
        figure = plt.figure(number)
        name = f"{stem}-{len(list(to.glob(f'{stem}-*.png'))) + 1}.png"
        figure.savefig(to / name, dpi=120, bbox_inches="tight")
        plt.close(figure)
        title = figure.axes[0].get_title() or figure.axes[0].get_ylabel()
        shown.append(f"![{title}]({name})")
    return shown


def main(arguments: list[str]) -> None:
    """Run tutorials, and say so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="+", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args(arguments)
    for script in options.scripts:
        print(run_tutorial(script, options.to))


if __name__ == "__main__":
    main(sys.argv[1:])
