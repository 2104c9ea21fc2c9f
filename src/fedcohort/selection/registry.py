"""Selectors by name, our own and those of other packages.

Another package adds its selector with an entry point in the group ``fedcohort.selectors`` whose
name is the selector's and whose value is the class, for example in its ``pyproject.toml``::

    [project.entry-points."fedcohort.selectors"]
    my-rule = "my_package.selection:MyRule"
"""

import dataclasses
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, TypeVar

from fedcohort.errors import InvalidInputError, InvalidParameterError, UnknownNameError
from fedcohort.selection.base import Selector

ENTRY_POINT_GROUP = "fedcohort.selectors"

_Class = TypeVar("_Class", bound=type[Selector])
_registered: dict[str, type[Selector]] = {}


def register(name: str) -> Callable[[_Class], _Class]:
    """Register a selector class under `name`, which becomes its ``name`` attribute."""

    def add(selector: _Class) -> _Class:
        if name in _registered:
            raise InvalidInputError(f"A selector {name!r} exists already: choose another name.")
        selector.name = name
        _registered[name] = selector
        return selector

    return add


def list_selectors() -> list[str]:
    """Return the names of all selectors, those of installed packages among them."""
    return sorted({*_registered, *(e.name for e in entry_points(group=ENTRY_POINT_GROUP))})


def selector_class(name: str) -> type[Selector]:
    """Return the class registered under `name`."""
    if name in _registered:
        return _registered[name]
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
        found = entry.load()
        if not (isinstance(found, type) and issubclass(found, Selector)):
            raise InvalidInputError(
                f"The entry point {name!r} of {entry.value} is not a Selector: fix that package."
            )
        found.name = name
        return found
    raise UnknownNameError("selector", name, list_selectors())


def make_selector(name: str, **parameters: Any) -> Selector:
    """Make a selector by name.

    Examples
    --------
    >>> from fedcohort import make_selector
    >>> make_selector("fedavg").fit(clients=5).select(5, rng=np.random.default_rng(0)).ids.sort()
    """
    selector = selector_class(name)
    known = {field.name for field in dataclasses.fields(selector)}
    for given in parameters:
        if given not in known:
            raise InvalidParameterError(
                f"Selector {name!r} has no parameter {given!r}:"
                f" it takes {', '.join(sorted(known)) or 'none'}."
            )
    return selector(**parameters)
