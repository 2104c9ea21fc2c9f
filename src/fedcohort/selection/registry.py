"""Selectors by name, our own and those of other packages, or by reference to a class.

A spec is a name or a reference, with or without parameters (see `fedcohort.specs`): ``dp3s``,
``match:guard=profiles``, ``my_package.selection:MyRule``, ``my_selector.py:MySelector:beta=0.5``.

Another package adds its selector with an entry point in the group ``fedcohort.selectors`` whose
name is the selector's and whose value is the class, for example in its ``pyproject.toml``::

    [project.entry-points."fedcohort.selectors"]
    my-rule = "my_package.selection:MyRule"
"""

import dataclasses
import inspect
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, TypeVar

from fedcohort.errors import InvalidInputError, InvalidParameterError, UnknownNameError
from fedcohort.references import load_reference
from fedcohort.selection.base import Selector
from fedcohort.specs import format_spec, parse_spec

ENTRY_POINT_GROUP = "fedcohort.selectors"

_Class = TypeVar("_Class", bound=type[Selector])
_registered: dict[str, type[Selector]] = {}


def register(name: str) -> Callable[[_Class], _Class]:
    """Register a selector class under `name`, which becomes its ``name`` attribute.

    Parameters
    ----------
    name : str
        What specs call it; `list_selectors` has it from then on.

    Examples
    --------
    >>> from fedcohort import Selector
    >>> @register("first")  # doctest: +SKIP
    ... class First(Selector):
    ...     def _choose(self, k, rows, rng):
    ...         return self._cohort(rows[:k])
    """

    def add(selector: _Class) -> _Class:
        if name in _registered:
            raise InvalidInputError(f"A selector {name!r} exists already: choose another name.")
        selector.name = name
        _registered[name] = selector
        return selector

    return add


def list_selectors() -> list[str]:
    """Return the names of all selectors, those of installed packages among them.

    Examples
    --------
    >>> "match" in list_selectors()
    True
    """
    return sorted({*_registered, *(e.name for e in entry_points(group=ENTRY_POINT_GROUP))})


def selector_class(spec: str) -> type[Selector]:
    """Return the class that `spec` names; parameters in the spec are passed over.

    Parameters
    ----------
    spec : str
        A name, ``module:Class`` or ``FILE.py:Class``, with or without parameters.

    Examples
    --------
    >>> selector_class("match:guard=profiles")
    <class 'fedcohort.selection.match.Match'>
    """
    return _class_of(parse_spec(spec)[0])


def make_selector(spec: str, /, **parameters: Any) -> Selector:
    """Make a selector from a spec and, if given, further parameters.

    Parameters
    ----------
    spec : str
        A name of `list_selectors`, ``module:Class`` or ``FILE.py:Class``; parameters may follow, as
        in ``match:guard=profiles``.
    **parameters
        Parameters of the class.

    Examples
    --------
    >>> from fedcohort import make_selector
    >>> len(make_selector("fedavg").fit(clients=50).select(10, rng=np.random.default_rng(0)))
    10
    >>> make_selector("match:guard=profiles", evenness="free").guard
    'profiles'
    """
    name, written = parse_spec(spec)
    selector = _class_of(name)
    known = {field.name for field in dataclasses.fields(selector)}
    for given in (*written, *parameters):
        if given not in known:
            raise InvalidParameterError(
                f"Selector {name!r} has no parameter {given!r}:"
                f" it takes {', '.join(sorted(known)) or 'none'}."
            )
    for twice in written.keys() & parameters:
        raise InvalidParameterError(
            f"Selector {spec!r} is given {twice!r} once more as {parameters[twice]!r}: leave one"
            " of them out."
        )
    return selector(**written, **parameters)


def _class_of(name: str) -> type[Selector]:
    if name in _registered:
        return _registered[name]
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
        found = _checked(entry.load(), f"The entry point {name!r} of {entry.value}")
        found.name = name
        return found
    own, colon, word = name.partition(":")
    if not colon:
        raise UnknownNameError("selector", name, list_selectors())
    if own in list_selectors():
        raise InvalidParameterError(
            f"Selector {name!r} has the parameter {word!r} without a value: write"
            f" {own}:{word}=VALUE."
        )
    return _checked(load_reference(name, "selector"), f"Selector {name!r}")


def _checked(found: Any, what: str) -> type[Selector]:
    """Return `found` if it is a class that selectors can be made from."""
    if not (isinstance(found, type) and issubclass(found, Selector)):
        raise InvalidInputError(
            f"{what} is not a Selector: give a class that is derived from fedcohort.Selector."
        )
    if inspect.isabstract(found):
        raise InvalidInputError(f"{what} does not say how to choose: write its method _choose.")
    if any(isinstance(value, dataclasses.Field) for value in vars(found).values()):
        raise InvalidInputError(
            f"{what} declares parameters but is not a dataclass: write"
            " @dataclasses.dataclass(kw_only=True, eq=False) above the class."
        )
    return found


def spec_of(selector: Selector | type[Selector]) -> str:
    """Return the spec that makes selectors like this one.

    A class that nothing is registered under gets its own name; one that was written anew, as in a
    notebook, takes the place of its earlier version.

    Parameters
    ----------
    selector : Selector or class
        An object, whose parameters the spec repeats, or a class.
    """
    kind = _checked(selector if isinstance(selector, type) else type(selector), repr(selector))
    there = _registered.setdefault(kind.name, kind)
    if (there.__module__, there.__qualname__) != (kind.__module__, kind.__qualname__):
        raise InvalidInputError(
            f"A selector {kind.name!r} exists already ({there.__module__}): give the class"
            f" {kind.__qualname__} another name."
        )
    _registered[kind.name] = kind
    if isinstance(selector, type):
        return kind.name
    values = ((field, getattr(selector, field.name)) for field in dataclasses.fields(kind))
    return format_spec(kind.name, {f.name: v for f, v in values if v != f.default})
