"""Selectors by name, our own and those of other packages, or by reference to a class.

A spec is a name or a reference, with or without parameters (see `fedcohort.specs`): ``dp3s``,
``match:guard=profiles``, ``my_package.selection:MyRule``, ``my_selector.py:MySelector:beta=0.5``;
or a wrapper around another spec: ``only(match:guard=profiles; 3; ward-*)``.

Another package adds its selector with an entry point in the group ``fedcohort.selectors`` whose
name is the selector's and whose value is the class, for example in its ``pyproject.toml``::

    [project.entry-points."fedcohort.selectors"]
    my-rule = "my_package.selection:MyRule"
"""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Any, TypeVar

from fedcohort.errors import (
    BrokenSelectorError,
    FedcohortError,
    InvalidInputError,
    InvalidParameterError,
    UnknownNameError,
)
from fedcohort.references import account, load_reference
from fedcohort.selection.base import Selector
from fedcohort.specs import format_spec, parse_spec, parse_wrapped

ENTRY_POINT_GROUP = "fedcohort.selectors"

_Class = TypeVar("_Class", bound=type[Selector])
_registered: dict[str, type[Selector]] = {}
# What makes a wrapper of a spec and of those it is for, by its name.
_Wrap = Callable[[str, tuple[int | str, ...]], Selector]
_wrappers: dict[str, _Wrap] = {}


def register_wrapper(name: str, wrap: _Wrap) -> None:
    """Let specs such as ``name(match; 3)`` be made by ``wrap("match", (3,))``."""
    _wrappers[name] = wrap


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
    """Return the class that `spec` names; parameters in it and wrappers are passed over.

    Parameters
    ----------
    spec : str
        A name, ``module:Class`` or ``FILE.py:Class``, with or without parameters.

    Examples
    --------
    >>> selector_class("match:guard=profiles")
    <class 'fedcohort.selection.match.Match'>
    """
    wrapped = parse_wrapped(spec)
    return _class_of(parse_spec(spec)[0]) if wrapped is None else selector_class(wrapped[1])


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
    if not isinstance(spec, str):
        raise InvalidInputError(f"A selector is named by a text, such as 'match', not {spec!r}.")
    if (wrapped := parse_wrapped(spec)) is not None:
        return _make_wrapped(*wrapped, parameters)
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
    if missing := [n for n in _required(selector) if n not in written and n not in parameters]:
        raise InvalidParameterError(
            f"Selector {name!r} cannot do without {', '.join(missing)}: write"
            f" {name}:{','.join(f'{parameter}=VALUE' for parameter in missing)}."
        )
    with blamed(selector, f"Selector {name!r} cannot be made"):
        return selector(**written, **parameters)


@contextlib.contextmanager
def blamed(kind: type[Selector], failed: str) -> Iterator[None]:
    """Raise what a user's own class raises as one sentence that begins with what `failed`.

    Errors of fedcohort's, and all errors of its own classes, stay as they are.
    """
    try:
        yield
    except Exception as raised:
        if not is_users(kind) or isinstance(raised, FedcohortError):
            raise
        raise BrokenSelectorError(
            f"{failed} ({account(raised)}): mend it, with the help of"
            " fedcohort.testing.check_selector."
        ) from raised


def is_users(kind: type[Selector]) -> bool:
    """Tell whether a class is somebody else's and not fedcohort's own."""
    return kind.__module__.partition(".")[0] != "fedcohort"


def _required(kind: type[Selector]) -> list[str]:
    """Return the parameters of a class that have no default."""
    return [f.name for f in dataclasses.fields(kind) if f.init and f.default is f.default_factory]


def _make_wrapped(
    name: str, inner: str, who: tuple[int | str, ...], parameters: dict[str, Any]
) -> Selector:
    if name not in _wrappers:
        raise UnknownNameError("wrapper", name, _wrappers)
    if parameters:
        raise InvalidParameterError(
            f"Wrapper {name!r} has no parameter {next(iter(parameters))!r}: give it to the selector"
            " inside."
        )
    return _wrappers[name](inner, who)


def _class_of(name: str) -> type[Selector]:
    if name in _registered:
        return _registered[name]
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
        found = _checked(entry.load(), f"The entry point {name!r} of {entry.value}")
        found.name = name
        return found
    if (wrapper := name.partition("(")[0].strip()) in _wrappers:
        raise InvalidParameterError(
            f"Selector {name!r} has brackets that do not match: write"
            f" {wrapper}(SELECTOR; CLIENT; …)."
        )
    own, colon, word = name.partition(":")
    if not colon and not name.endswith(".py"):
        several = name.replace(" ", "").split(",")
        if len(several) > 1 and set(several) <= set(list_selectors()):
            raise InvalidInputError(
                f"Selector {name!r} is several: give each by itself, as in"
                f" {' '.join(f'--selector {one}' for one in several)}."
            )
        raise UnknownNameError("selector", name, list_selectors())
    if own in list_selectors():
        raise InvalidParameterError(
            f"Selector {name!r} has the parameter {word!r} without a value: write"
            f" {own}:{word}=VALUE."
        )
    return _checked(load_reference(name, "selector", kind=Selector), f"Selector {name!r}")


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


def register_class(kind: type[Selector]) -> None:
    """Register a class under its own name, unless another class has it."""
    there = _registered.setdefault(kind.name, kind)
    if (there.__module__, there.__qualname__) != (kind.__module__, kind.__qualname__):
        raise InvalidInputError(
            f"A selector {kind.name!r} exists already ({there.__module__}): give the class"
            f" {kind.__qualname__} another name."
        )
    _registered[kind.name] = kind


@functools.singledispatch
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
    if isinstance(selector, type) and (missing := _required(kind)):
        raise InvalidInputError(
            f"Selector class {kind.__qualname__} cannot do without {', '.join(missing)}: give an"
            " object that has them."
        )
    register_class(kind)
    if isinstance(selector, type):
        return kind.name
    values = ((field, getattr(selector, field.name)) for field in dataclasses.fields(kind))
    return format_spec(kind.name, {f.name: v for f, v in values if v != f.default})
