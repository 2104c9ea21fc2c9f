"""A study: many runs, written down in one TOML file.

    name = "digits"

    [base]                       # what all parts share: any field of RunConfig, one value or a list
    dataset = "digits"
    selector = ["dp3s", "fedavg"]
    seeds = "0..9"

    [[part]]                     # parts differ in what they set themselves
    name = "one class a client"
    skew = 1
    rounds = 100
    target = 0.9                 # accuracy that reports count rounds to: training accuracy, or
    target_on = "test"           # test accuracy

A part is the product of its lists. A run that several parts name is one run, done once.
"""

import contextlib
import dataclasses
import itertools
import math
import tomllib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from fedcohort.errors import (
    FedcohortWarning,
    InvalidInputError,
    InvalidParameterError,
    StudyError,
    UnknownNameError,
)
from fedcohort.parameters import Interval, OneOf
from fedcohort.simulation.config import SETTINGS, RunConfig
from fedcohort.simulation.scores import Part as PartOfData
from fedcohort.simulation.scores import Target
from fedcohort.simulation.seeds import parse_seeds
from fedcohort.specs import meaning

_TARGET = Interval(0, 1, closed="right")
_TARGET_ON = OneOf("train", "test")
# A product of lists grows past all patience before anybody meant it: more must be asked for.
_MOST_RUNS = 20_000
_NOTHING: Mapping[str, Any] = MappingProxyType({})
# By key: a study names seeds, a run has one.
_KEYS = {
    "seeds" if name == "seed" else name: declared
    for name, declared in SETTINGS.items()
    if declared.group is not None
}


def check_target(value: Any, where: str) -> float:
    """Return a score to reach; `where` names it in errors."""
    if _TARGET(value):
        return float(value)
    percent = Interval(1, 100)(value)
    hint = f": write {value / 100:g} for {value:g} %" if percent else ""
    raise InvalidParameterError(f"{where} must be {_TARGET}, not {value!r}{hint}.")


def check_target_on(value: Any, where: str) -> PartOfData:
    """Return on which samples a score is to be reached; `where` names it in errors."""
    if _TARGET_ON(value):
        return cast(PartOfData, value)
    raise InvalidParameterError(f"{where} must be {_TARGET_ON}, not {value!r}.")


# What a table may say besides settings.
_GOAL = {"target": check_target, "target_on": check_target_on}


class LargeStudyWarning(FedcohortWarning):
    """A study names so many runs that it will take a while before anything else is said."""


@dataclasses.dataclass(frozen=True)
class Part:
    """Runs that are looked at together.

    Attributes
    ----------
    name : str
        How reports call it.
    configs : tuple of RunConfig
        The product of what the part lists, seeds fastest; none where other parts are done alone.
    target : Target or None
        What reports count rounds to.
    """

    name: str
    configs: tuple[RunConfig, ...]
    target: Target | None = None


@dataclasses.dataclass(frozen=True)
class Study:
    """Named parts, and the text they were read from.

    Attributes
    ----------
    name : str
        Of the study; a folder can hold several.
    parts : tuple of Part
        In the order of the file.
    source : str
        The file's text, and what was replaced of it.
    """

    name: str
    parts: tuple[Part, ...]
    source: str = ""

    @property
    def configs(self) -> tuple[RunConfig, ...]:
        """All runs, each once, in the order they are first named."""
        return tuple(dict.fromkeys(c for part in self.parts for c in part.configs))

    def only(self, names: Iterable[str]) -> "Study":
        """Return the study with the runs of these parts alone; the others keep their places."""
        chosen, known = set(names), [part.name for part in self.parts]
        for name in chosen.difference(known):
            raise UnknownNameError(f"part of study {self.name!r} called", name, known)
        parts = (p if p.name in chosen else dataclasses.replace(p, configs=()) for p in self.parts)
        return dataclasses.replace(self, parts=tuple(parts))


def read_study(path: str | Path, replaced: Mapping[str, Any] = _NOTHING) -> Study:
    """Read a study file.

    Parameters
    ----------
    path : path-like
        The TOML file.
    replaced : dict, optional
        What all parts say in place of what the file says, such as ``{"seeds": [5, 6]}``.

    Raises
    ------
    StudyError
        For the first thing that is wrong, naming the file and the table it stands in.
    """
    file = Path(path)
    try:
        source = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"The study {str(path)!r} cannot be read ({error}).") from error
    return parse_study(source, str(path), replaced)


def parse_study(source: str, file: str, replaced: Mapping[str, Any] = _NOTHING) -> Study:
    """Return the study that a TOML text says; `file` names it in errors."""
    try:
        document = tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{file} is not TOML ({error}).") from error
    known = {"name": str, "most_runs": int, "base": dict, "part": list}
    for key, value in document.items():
        if key in _KEYS or key in _GOAL:
            raise StudyError(f"{file}: {key} stands above the tables: put it under [base].")
        if key not in known:
            raise StudyError(f"{file}: {UnknownNameError('top-level key', key, known)}")
        if not isinstance(value, known[key]):
            wanted = {
                "name": "a text",
                "most_runs": "a whole number",
                "base": "a table [base]",
                "part": "tables [[part]]",
            }[key]
            raise StudyError(f"{file}: {key} must be {wanted}, not {value!r}.")
    base = document.get("base", {})
    _check_count(document, file, replaced)
    _check_table(base, f"{file}, [base]")
    _check_table(replaced, "in place of the study's")
    name = document.get("name", Path(file).stem)
    tables = document.get("part", [{"name": name}])
    parts: list[Part] = []
    for number, table in enumerate(tables, start=1):
        where = f"{file}, [[part]] {number}" if "part" in document else f"{file}, [base]"
        if not isinstance(table, dict) or not isinstance(table.get("name", ""), str):
            raise StudyError(f"{where}: a part is a table, and its name a text.")
        title = table.get("name", f"part {number}")
        own = {key: value for key, value in table.items() if key != "name"}
        _check_table(own, where)
        if title in (part.name for part in parts):
            raise StudyError(f"{where}: another part is called {title!r}: choose another name.")
        parts.append(_expand(title, {**base, **own, **replaced}, where))
    said = "".join(f"\n# {key} = {value}" for key, value in replaced.items())
    return Study(name, tuple(parts), source + said)


def _check_count(document: Mapping[str, Any], file: str, replaced: Mapping[str, Any]) -> None:
    """Refuse more runs than were asked for, before any of them is made."""
    base, most = document.get("base", {}), document.get("most_runs", _MOST_RUNS)
    tables = [table for table in document.get("part", [{}]) if isinstance(table, dict)]
    runs = sum(_count({**base, **table, **replaced}) for table in tables)
    if runs > most:
        raise StudyError(
            f"{file}: its lists multiply to {runs} runs, and more than {most} are done only if they"
            f" are asked for: shorten them, or write most_runs = {runs} above the tables."
        )
    if runs > _MOST_RUNS:
        warnings.warn(
            f"{file}: its lists multiply to {runs} runs; to read and enter them takes a while.",
            LargeStudyWarning,
            stacklevel=3,
        )


def _count(table: Mapping[str, Any]) -> int:
    """Return how many runs a table's lists multiply to; what is wrong in them is said later."""
    lengths = []
    for key, raw in table.items():
        with contextlib.suppress(InvalidInputError):
            lengths.append(len(_values(key, raw)) if key in _KEYS else 1)
    return math.prod(lengths)


def _check_table(table: Mapping[str, Any], where: str) -> None:
    """Refuse what is wrong in one table by itself."""
    for key, raw in table.items():
        try:
            if key in _GOAL:
                _GOAL[key](raw, key)
                continue
            values = _values(key, raw)
            for value in values:
                _KEYS[key].check_value(value, "the run")
        except InvalidInputError as error:
            raise StudyError(f"{where}: {error}") from error
        meant = [meaning(value) for value in values] if key == "selector" else values
        if len(set(meant)) < len(meant):
            twice = next(v for v, m in zip(values, meant, strict=True) if meant.count(m) > 1)
            raise StudyError(f"{where}: {key} names {twice!r} twice: leave one out.")


def _expand(name: str, table: Mapping[str, Any], where: str) -> Part:
    """Return the product of a table's lists, in the order of RunConfig's fields."""
    lists = {_KEYS[k].name: _values(k, v) for k, v in table.items() if k not in _GOAL}
    names = [name for name in SETTINGS if name in lists]
    try:
        configs = tuple(
            RunConfig(**dict(zip(names, chosen, strict=True)))
            for chosen in itertools.product(*(lists[name] for name in names))
        )
    except InvalidInputError as error:
        raise StudyError(f"{where}: {error}") from error
    target = table.get("target")
    if target is None and "target_on" in table:
        raise StudyError(f"{where}: target_on has no target that it could be of: name one.")
    goal = None if target is None else Target(float(target), table.get("target_on", "train"))
    return Part(name, configs, goal)


def _values(key: str, raw: Any) -> list[Any]:
    """Return what a key lists, as RunConfig takes it."""
    if key not in _KEYS:
        raise UnknownNameError("setting", key, (*_KEYS, *_GOAL))
    if key == "seeds" and isinstance(raw, str):
        return list(parse_seeds(raw, "seeds"))
    values = raw if isinstance(raw, list) else [raw]
    if not values:
        raise InvalidInputError(f"{key} is an empty list: name at least one value.")
    if key == "seeds" and not all(isinstance(value, int | float) for value in values):
        raise InvalidInputError(
            f'seeds must be a text such as "0..9", a whole number or a list, not {raw!r}.'
        )
    return [_KEYS[key].from_toml(value) for value in values]


def study_of_runs(configs: Sequence[RunConfig], target: Target | None = None) -> Study:
    """Return the small study that a list of runs is; a selector goes by its first spelling."""
    spelt: dict[str, str] = {}
    distinct: dict[RunConfig, None] = {}
    for config in configs:
        first = spelt.setdefault(meaning(config.selector), config.selector)
        same = first == config.selector
        distinct[config if same else dataclasses.replace(config, selector=first)] = None
    return Study("run", (Part("run", tuple(distinct), target),))
