"""The house: which folder may import which, and how long a function may be."""

import ast
import collections
import itertools
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "fedcohort"
LONGEST_FUNCTION = 70
# Nothing that decides who trains needs more than NumPy and SciPy.
LIGHT = ("fedcohort.selection", "fedcohort.dpp")
TOO_HEAVY = ("torch", "flwr", "pandas", "fedcohort.simulation", "fedcohort.training")
ACCELERATORS = "fedcohort.training.accelerators"


class House:
    """A package's source: its modules, and what each imports anywhere in its text.

    Imports inside functions count as all others; only those that a type checker alone sees do not.
    """

    def __init__(self, files):
        """Read the source of modules, a dict by dotted name; folders end in ``.__init__``."""
        self.folders = {name.removesuffix(".__init__"): name.rpartition(".")[0] for name in files}
        self.trees = {
            name.removesuffix(".__init__"): ast.parse(text) for name, text in files.items()
        }

    def imports(self, module):
        """Return the modules of this package, and the names of others, that a module imports."""
        found, unseen = set(), set()
        for node in ast.walk(self.trees[module]):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                unseen |= {id(inner) for kept in node.body for inner in ast.walk(kept)}
        for node in ast.walk(self.trees[module]):
            if id(node) in unseen:
                continue
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                start = self._start(module, node)
                inner = {f"{start}.{alias.name}" for alias in node.names}
                found |= {name if name in self.trees else start for name in inner}
        return found

    def _start(self, module, node):
        if not node.level:
            return node.module
        parts = self.folders[module].split(".")
        above = parts[: len(parts) - node.level + 1]
        return ".".join([*above, node.module] if node.module else above)

    def cycles(self):
        """Return pairs of folders, nested ones included, of which each imports from the other.

        By way of others too: no folder may be reached from itself. The package's own folder, which
        holds what all others share and what users import, does not count.
        """
        above = collections.defaultdict(set)
        for module, folder in self.folders.items():
            for name in self.imports(module) & self.folders.keys():
                if self.folders[name] != folder:
                    above[folder].add(self.folders[name])
        root = min(self.folders.values(), key=len)
        above.pop(root, None)
        reached = {folder: _reachable(above, folder) - {root} for folder in above}
        return [
            pair
            for pair in itertools.combinations(sorted(reached), 2)
            if pair[1] in reached[pair[0]] and pair[0] in reached[pair[1]]
        ]

    def classes_named_twice(self):
        modules = collections.defaultdict(list)
        for module, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    modules[node.name.lstrip("_")].append(module)
        return {name: found for name, found in modules.items() if len(found) > 1}

    def long_functions(self):
        """Return functions of more lines than allowed, docstrings included."""
        found = {}
        for module, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lines = node.end_lineno - node.lineno + 1
                    if lines > LONGEST_FUNCTION:
                        found[f"{module}:{node.name}"] = lines
        return found

    def looks_inside(self, folder):
        """Return modules outside a folder that import from inside one of the folders in it."""
        return {
            (module, name)
            for module in self.trees
            for name in self.imports(module)
            if name.startswith(f"{folder}.")
            and (inside := ".".join(name.split(".")[: folder.count(".") + 2]))
            in self.folders.values()
            and not f"{module}.".startswith(f"{inside}.")
        }


def _reachable(edges, start):
    found, new = set(), set(edges.get(start, ()))
    while new:
        found |= new
        new = {there for here in new for there in edges.get(here, ())} - found
    return found


def house():
    files = sorted(SRC.rglob("*.py"))
    names = [".".join(file.relative_to(SRC.parent).with_suffix("").parts) for file in files]
    return House({name: file.read_text() for name, file in zip(names, files, strict=True)})


@pytest.fixture(scope="module")
def fedcohort():
    return house()


def test_folders_import_in_one_direction(fedcohort):
    assert fedcohort.cycles() == []


def test_no_class_name_exists_twice(fedcohort):
    assert fedcohort.classes_named_twice() == {}


def test_no_function_is_longer_than_a_screen(fedcohort):
    assert fedcohort.long_functions() == {}


def test_nobody_looks_inside_an_accelerator(fedcohort):
    assert fedcohort.looks_inside(ACCELERATORS) == set()


@pytest.mark.parametrize("light", LIGHT)
def test_what_selects_is_light(fedcohort, light):
    modules = [name for name in fedcohort.trees if f"{name}.".startswith(f"{light}.")]
    assert len(modules) > 5
    for module in modules:
        heavy = {
            name
            for name in fedcohort.imports(module)
            if any(f"{name}.".startswith(f"{start}.") for start in TOO_HEAVY)
        }
        assert not heavy, module


# -- the questions above can be answered wrongly ----------------------------------------------


def test_a_cycle_is_found_wherever_it_hides():
    files = {"p.__init__": "", "p.a.__init__": "", "p.a.b.__init__": "", "p.c.__init__": ""}
    fine = files | {"p.a.x": "from p.a.b import y", "p.a.b.y": "import p.c", "p.c.z": "import os"}
    assert House(fine).cycles() == []
    nested = fine | {"p.a.b.y": "def f():\n    from p.a.x import g"}
    assert House(nested).cycles() == [("p.a", "p.a.b")]
    relative = fine | {"p.c.z": "from ..a import x"}
    assert ("p.a", "p.c") in House(relative).cycles()
    by_way_of_another = fine | {"p.c.z": "from p.a.x import g"}
    assert ("p.a.b", "p.c") in House(by_way_of_another).cycles()
    only_for_types = fine | {
        "p.c.z": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a.x import g"
    }
    assert House(only_for_types).cycles() == []


def test_doubles_and_long_functions_are_found():
    body = "\n    x = 1" * (LONGEST_FUNCTION - 1)
    files = {"p.__init__": "class A: ...", "p.x": "class _A: ...", "p.y": f"def f():{body}"}
    assert House(files).classes_named_twice() == {"A": ["p", "p.x"]}
    assert House(files).long_functions() == {}
    assert House(files | {"p.y": f"def f():{body}\n    x = 1"}).long_functions() == {"p.y:f": 71}


def test_a_look_inside_is_found():
    files = {
        "p.__init__": "",
        "p.f.__init__": "",
        "p.f.choice": "import p.f",
        "p.f.one.__init__": "from p.f.one.x import y",
        "p.f.one.x": "",
        "p.f.two.__init__": "",
        "p.z": "from p.f import choice",
    }
    assert House(files).looks_inside("p.f") == set()
    for module in ("p.z", "p.f.choice", "p.f.two.__init__"):
        changed = House(files | {module: "def f():\n    from p.f.one import x"})
        assert changed.looks_inside("p.f") == {(module.removesuffix(".__init__"), "p.f.one.x")}
    assert House(files | {"p.z": "from p.f.one import takes"}).looks_inside("p.f")
