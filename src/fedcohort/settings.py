"""Settings: each is declared once, and everything that is said about it is read from there.

A field of `RunConfig` made with `setting` carries its default, its check, its help, the words that
reports use and how runs that differ in it may be grouped. The options of ``fedcohort run``, the
keys of study files, the table in ``docs/settings.md``, the columns of exports and the grouping of
runs are derived from these declarations.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

from fedcohort.errors import InvalidInputError, InvalidParameterError
from fedcohort.parameters import Check, OneOf, Optional, check_value

_SETTING = "fedcohort.setting"

Group = Literal["data", "training", "selection", "system", "output"]
GROUPS: tuple[Group, ...] = get_args(Group)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What there is to know about one setting of a run.

    Attributes
    ----------
    name : str
        The field's name, which is also the key in study files.
    kind : type
        ``int``, ``float``, ``bool`` or ``str``.
    default : object
        What a run has that does not say otherwise.
    check : Check
        Which values are accepted.
    help : str
        One sentence for the command line and the documentation.
    group : str or None
        The heading it stands under; None for what fedcohort fills in itself, which is neither an
        option nor a key.
    lockstep : bool
        Whether runs that train as one program must share it.
    federation : bool or str
        Whether it shapes the clients, their data, the first model or their profiles; a text names
        the one kind of profile for which it does.
    words : str
        A format for reports, such as ``"{} clients"``; the name and the value if empty.
    none : (str, str)
        The word for None in study files and on the command line, and what reports say for it; empty
        where users cannot choose None.
    grammar : callable, optional
        Reads a text that has a grammar of its own, and raises for one that it cannot read.
    names : iterable of str, or a callable that returns one
        What a shell may complete it with.
    number_as_text : bool
        Whether a study file may write this text as a plain number.
    on_command_line : object
        The default of the option, where ``fedcohort run`` has another one.
    compared : bool
        Whether reports compare runs that differ in it, instead of showing them apart.
    quiet : bool
        Whether the default goes without saying.
    divides : bool
        Whether it says how data are divided over clients, and so cannot be given for data that
        have clients of their own.
    left_open : bool
        Whether it is None until the data set is known.
    """

    name: str = ""
    kind: type = str
    default: Any
    check: Check
    help: str
    group: Group | None
    lockstep: bool
    federation: bool | str
    words: str = ""
    none: tuple[str, str] | tuple[()] = ()
    grammar: Callable[[str], object] | None = None
    names: Iterable[str] | Callable[[], Iterable[str]] = ()
    number_as_text: bool = False
    on_command_line: Any = None
    compared: bool = False
    quiet: bool = False
    divides: bool = False
    left_open: bool = False

    @property
    def option(self) -> str:
        """The option of the command line, such as ``--batch-size``."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def option_default(self) -> Any:
        """What a run has whose command does not name the option."""
        return self.default if self.on_command_line is None else self.on_command_line

    @property
    def accepts(self) -> str:
        """What may be written, in words."""
        if not isinstance(self.check, Optional):
            return str(self.check)
        word = f", or {self.none[0]}" if self.none else ""
        return f"{self.check.inner}{word}"

    def completions(self) -> list[str]:
        """Return the values that have names."""
        found = self.names() if callable(self.names) else self.names
        named = self.check.options if isinstance(self.check, OneOf) else ()
        return [*found, *map(str, named), *self.none[:1]]

    def check_value(self, value: Any, where: str) -> None:
        """Raise one sentence about a value that is wrong by itself; `where` names its owner."""
        check_value(self.name, value, self.check, where)
        if self.grammar is not None:
            self.grammar(value)

    def from_text(self, text: str) -> Any:
        """Return the value that the command line says."""
        if text in self.none[:1]:
            return None
        try:
            value = self.kind(text)
        except ValueError:
            value = text
        return self._checked(value, self.option, repr(text))

    def to_text(self, value: Any) -> str:
        """Return a value as the command line takes it."""
        if value is None and self.none:
            return self.none[0]
        if not isinstance(value, float):
            return str(value)
        short = f"{value:g}"
        return short if float(short) == value else repr(value)

    def from_toml(self, raw: Any) -> Any:
        """Return the value that a study file says: equal runs must be written alike."""
        number = isinstance(raw, int | float) and not isinstance(raw, bool)
        if number and self.number_as_text:
            return f"{raw:g}"
        if raw in self.none[:1]:
            return None
        if self.kind is str and not isinstance(raw, str):
            raise InvalidInputError(f"{self.name} must be a text, not {raw!r}.")
        if isinstance(raw, dict | list):
            raise InvalidInputError(f"{self.name} must be one value or a flat list of values.")
        value = float(raw) if number and self.kind is float else raw
        text = isinstance(raw, str) and self.kind is not str
        return self._checked(value, self.name, f"the text {raw!r}" if text else repr(raw))

    def _checked(self, value: Any, name: str, given: str) -> Any:
        """Return a value, or refuse it in the words of whoever wrote `given` for `name`."""
        if not self.check(value):
            raise InvalidParameterError(f"{name} must be {self.accepts}, not {given}.")
        return value

    def say(self, value: Any) -> str:
        """Return a value in the words of a report."""
        if value is None and self.none:
            return self.none[1]
        if not self.words or value is None:
            return f"{self.name.replace('_', ' ')} {value}"
        words = self.words.format(value)
        return words.removesuffix("s") if value == 1 else words


def setting(default: Any, check: Check, **more: Any) -> Any:
    """Declare a setting as a dataclass field; the parameters are the attributes of `Setting`.

    How runs that differ in it may be grouped has no default: whoever adds a setting must decide.
    """
    declared = Setting(default=default, check=check, **more)
    return dataclasses.field(
        default=None if declared.left_open else default, metadata={_SETTING: declared}
    )


@functools.cache
def settings_of(owner: type) -> dict[str, Setting]:
    """Return the settings of a dataclass by name, in the order of its fields."""
    found = {}
    for field in dataclasses.fields(owner):
        kind = next(k for k in (get_args(field.type) or (field.type,)) if k is not type(None))
        declared: Setting = field.metadata[_SETTING]
        found[field.name] = dataclasses.replace(declared, name=field.name, kind=kind)
    return found
