"""Every public name has its parameters and an example in its docstring, and the examples run."""

import doctest
import importlib
import inspect
from pathlib import Path

import numpy as np
import pytest
from check_site import exported, public_names

SOURCE = Path(__file__).parents[2] / "src"
# Settings have a page of their own; parameters of two classes; an enumeration; a protocol.
DESCRIBED_ELSEWHERE = {"RunConfig", "CohortFedAvg", "Need", "Check"}

WITH_EXAMPLES = sorted(
    ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for file in SOURCE.rglob("*.py")
    if ">>> " in file.read_text("utf-8")
)


def public():
    """Return what the API reference describes, once each, without constants and type aliases."""
    names = [*public_names(), *(f"fedcohort.{name}" for name in exported("fedcohort"))]
    found = {}
    for name in names:
        module, _, last = name.rpartition(".")
        value = getattr(importlib.import_module(module), last)
        if inspect.isclass(value) or inspect.isroutine(value):
            found.setdefault(value, name)
    return {name: value for value, name in found.items()}


def parameters(value):
    """Return what one can give to a function or a class."""
    given = inspect.signature(value).parameters.values()
    return [p.name for p in given if p.name not in ("self", "args", "kwargs")]


@pytest.fixture(scope="module")
def described():
    return {
        name: value
        for name, value in public().items()
        # What can go wrong is one class a cause, with one sentence each.
        if not (inspect.isclass(value) and issubclass(value, BaseException))
    }


def test_every_public_name_has_an_example(described):
    assert len(described) > 90
    assert [n for n, value in described.items() if ">>> " not in (value.__doc__ or "")] == []


def test_every_public_name_has_its_parameters(described):
    missing = [
        name
        for name, value in described.items()
        if name.rsplit(".", 1)[-1] not in DESCRIBED_ELSEWHERE
        and parameters(value)
        and not {"Parameters", "Attributes"} & set(inspect.getdoc(value).splitlines())
    ]
    assert missing == []


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(module), extraglobs={"np": np})
    assert result.attempted > 0
    assert result.failed == 0
