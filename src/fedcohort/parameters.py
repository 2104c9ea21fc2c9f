"""Parameters whose ranges stand beside their defaults.

Selectors and run configurations are dataclasses. A field made with `parameter` carries its check,
and `check_parameters` (called from ``__post_init__``) raises one clear sentence for the first
value that fails.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, Protocol

from fedcohort.errors import InvalidInputError, InvalidParameterError

_CHECK = "fedcohort.check"


class Check(Protocol):
    """A predicate on a value that can say in words what it accepts.

    Examples
    --------
    >>> is_even: Check = lambda value: value % 2 == 0
    """

    def __call__(self, value: Any) -> bool:
        """Tell whether `value` is accepted."""
        ...

    def __str__(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class Interval:
    """A finite number between `low` and `high`.

    Parameters
    ----------
    low, high : float
        The ends; infinite ends are left out of the message.
    closed : {"both", "left", "right", "neither"}
        Which ends belong to the interval.
    integral : bool
        Whether only whole numbers are accepted.

    Examples
    --------
    >>> Interval(0, 1, closed="left")(1.0)
    False
    >>> print(Interval(1, integral=True))
    a whole number at least 1
    """

    low: float = -math.inf
    high: float = math.inf
    closed: str = "both"
    integral: bool = False

    def __call__(self, value: Any) -> bool:
        """Tell whether `value` lies inside."""
        kinds = (int,) if self.integral else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value):
            return False
        above = value >= self.low if self.closed in ("both", "left") else value > self.low
        below = value <= self.high if self.closed in ("both", "right") else value < self.high
        return above and below

    def __str__(self) -> str:
        noun = "a whole number" if self.integral else "a number"
        ends = []
        if math.isfinite(self.low):
            ends.append(
                f"at least {self.low:g}"
                if self.closed in ("both", "left")
                else f"above {self.low:g}"
            )
        if math.isfinite(self.high):
            ends.append(
                f"at most {self.high:g}"
                if self.closed in ("both", "right")
                else f"below {self.high:g}"
            )
        return " ".join([noun, " and ".join(ends)]).strip()


@dataclasses.dataclass(frozen=True)
class OneOf:
    """One of a few values.

    Parameters
    ----------
    *options
        The values that are accepted.

    Examples
    --------
    >>> OneOf("size", "equal")("equal")
    True
    """

    options: tuple[Any, ...]

    def __init__(self, *options: Any) -> None:
        object.__setattr__(self, "options", options)

    def __call__(self, value: Any) -> bool:
        """Tell whether `value` is one of them."""
        return any(
            value is option or (type(value) is type(option) and value == option)
            for option in self.options
        )

    def __str__(self) -> str:
        return "one of " + ", ".join(repr(option) for option in self.options)


@dataclasses.dataclass(frozen=True)
class Text:
    """Any text.

    Examples
    --------
    >>> Text()("mnist")
    True
    """

    def __call__(self, value: Any) -> bool:
        """Tell whether `value` is a text."""
        return isinstance(value, str)

    def __str__(self) -> str:
        return "a text"


@dataclasses.dataclass(frozen=True)
class Optional:
    """None, or what another check accepts.

    Parameters
    ----------
    inner : Check
        What a value other than None must pass.

    Examples
    --------
    >>> Optional(Interval(0))(None)
    True
    """

    inner: Check

    def __call__(self, value: Any) -> bool:
        """Tell whether `value` is None or accepted."""
        return value is None or self.inner(value)

    def __str__(self) -> str:
        return f"{self.inner}, or None"


def parameter(default: Any, check: Check) -> Any:
    """Declare a dataclass field with a default and the check that guards it.

    Parameters
    ----------
    default : object
        The value when none is given.
    check : Check
        What every other value must pass.

    Examples
    --------
    >>> @dataclasses.dataclass
    ... class Rule:
    ...     share: float = parameter(0.1, Interval(0, 1))
    """
    return dataclasses.field(default=default, metadata={_CHECK: check})


def check_parameters(owner: Any, where: str) -> None:
    """Raise `InvalidParameterError` for the first field of `owner` whose check fails.

    Parameters
    ----------
    owner : dataclass instance
        What to check.
    where : str
        How to name the owner in the message, such as ``"selector 'fedsae'"``.

    Examples
    --------
    >>> @dataclasses.dataclass
    ... class Rule:
    ...     share: float = parameter(0.1, Interval(0, 1))
    >>> check_parameters(Rule(share=0.5), "my rule")
    """
    for field in dataclasses.fields(owner):
        check: Check | None = field.metadata.get(_CHECK)
        if check is not None:
            check_value(field.name, getattr(owner, field.name), check, where)


def check_value(name: str, value: Any, check: Check, where: str) -> None:
    """Raise `InvalidParameterError` unless `check` accepts the value of `name`.

    Parameters
    ----------
    name : str
        The parameter.
    value : object
        What it was given.
    check : Check
        What it must pass.
    where : str
        How to name the owner in the message.

    Examples
    --------
    >>> check_value("share", 0.5, Interval(0, 1), "my rule")
    """
    if not check(value):
        raise InvalidParameterError(f"{name} of {where} must be {check}, not {value!r}.")


def listed(name: str, given: Any, like: str) -> list[Any]:
    """Return several things as a list, and refuse one thing or none.

    Parameters
    ----------
    name : str
        What errors call them.
    given : iterable
        The things.
    like : str
        How such a list is written.

    Examples
    --------
    >>> listed("seeds", range(3), "[0]")
    [0, 1, 2]
    """
    # A text is iterable too, letter by letter.
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidInputError(f"{name} must be a list, such as {like}, not {given!r}.")
    if not (found := list(given)):
        raise InvalidInputError(f"{name} is empty: give a list, such as {like}.")
    return found
