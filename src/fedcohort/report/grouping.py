"""Which runs belong together: groups that differ in the seed alone, and panels of groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedcohort.simulation.config import RunConfig

# What is compared within one panel; everything else must be the same for a fair comparison.
_COMPARED = ("selector", "profile", "profile_layer", "profile_epsilon", "profile_delta", "init")

_USUAL = {
    "profile": "fc1",
    "profile_layer": None,
    "profile_epsilon": None,
    "profile_delta": 1e-5,
    "init": "default",
}

# What most runs leave as it is goes without saying, beside others that do not.
_OFF = {
    "size_spread": 0.0,
    "momentum": 0.0,
    "proximal": 0.0,
    "server": "avg",
    "availability": "always",
    "dropout": 0.0,
    "speed_spread": 0.0,
    "deadline": None,
    "over_selection": 1.0,
}

_WORDS = {
    "clients": "{} clients",
    "cohort": "cohorts of {}",
    "rounds": "{} rounds",
    "samples_per_client": "{} samples a client",
    "size_spread": "size spread {}",
    "epochs": "E = {:g}",
    "batch_size": "B = {}",
    "lr": "lr {:g}",
    "momentum": "momentum {:g}",
    "proximal": "FedProx {:g}",
    "server": "{}",
    "dropout": "dropout {:g}",
    "speed_spread": "speeds spread {:g}",
    "over_selection": "{:g} × asked",
    "eval_every": "evaluated every {} rounds",
    "init": "{}",
    "profile": "{} profiles",
    "profile_epsilon": "ε = {:g}",
    "profile_delta": "δ = {:g}",
}


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ in the seed alone.

    Attributes
    ----------
    configs : tuple of RunConfig
        One a seed, rising.
    panel : str
        What the group is compared within: the data set, the skew and, where the same data set and
        skew occur in several settings, what tells them apart.
    label : str
        The selector and, where the panel has it several times, what tells those apart.
    """

    configs: tuple[RunConfig, ...]
    panel: str
    label: str


def group_runs(configs: Iterable[RunConfig]) -> list[Group]:
    """Gather runs into groups, in the order their first runs are given."""
    alike: dict[tuple[Any, ...], list[RunConfig]] = {}
    for config in dict.fromkeys(configs):
        names = (field.name for field in dataclasses.fields(config) if field.name != "seed")
        alike.setdefault(tuple(getattr(config, name) for name in names), []).append(config)
    by_setting = {dataclasses.replace(runs[0], seed=0): runs for runs in alike.values()}
    panels: dict[RunConfig, list[RunConfig]] = {}
    for setting in by_setting:
        panels.setdefault(_panel(setting), []).append(setting)
    groups = []
    for panel, settings in panels.items():
        like = [p for p in panels if (p.dataset, p.skew) == (panel.dataset, panel.skew)]
        apart = _apart(panel, like, silent=_OFF)
        title = ", ".join([panel_title(panel.dataset, panel.skew), *apart])
        for setting in settings:
            same = [other for other in settings if other.selector == setting.selector]
            # The usual case keeps the plain name; only what departs from it says how.
            words = _apart(setting, same, silent=_USUAL)
            label = " · ".join([setting.selector, *words])
            runs = sorted(by_setting[setting], key=lambda config: config.seed)
            groups.append(Group(tuple(runs), title, label))
    return groups


def panel_title(dataset: str, skew: str) -> str:
    """Return a data set and a skew as a reader knows them, such as ``MNIST, ξ = 0.8``."""
    return f"{dataset_title(dataset)}, {skew_title(dataset, skew)}"


def dataset_title(dataset: str) -> str:
    """Return a data set's name as it is written in text; of a file, its name without folders."""
    known = {"digits": "Digits", "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
    return known.get(dataset.lower(), PurePath(dataset).name)


def skew_title(dataset: str, skew: str) -> str:
    """Return a skew as it is written in text."""
    kind, _, value = skew.strip().partition(":")
    if dataset.lower().endswith(".npz") or kind.lower() == "natural":
        return "its own clients"
    if kind.lower() == "iid":
        return "IID"
    if kind.lower() == "dirichlet":
        return f"Dirichlet({value})"
    if kind.lower() == "shards":
        return f"{value} shards a client"
    return f"ξ = {skew}"


def _panel(setting: RunConfig) -> RunConfig:
    defaults = {field.name: field.default for field in dataclasses.fields(setting)}
    changes: dict[str, Any] = {name: defaults[name] for name in _COMPARED}
    return dataclasses.replace(setting, **changes)


def _apart(
    setting: RunConfig,
    others: Sequence[RunConfig],
    silent: Mapping[str, Any] = MappingProxyType({}),
) -> list[str]:
    """Say in which settings one of several differs from the others, but for `silent` values."""
    names = [field.name for field in dataclasses.fields(setting)]
    varying = [n for n in names if len({getattr(other, n) for other in others}) > 1]
    values = {name: getattr(setting, name) for name in varying}
    return [_say(n, v) for n, v in values.items() if n not in silent or v != silent[n]]


def _say(name: str, value: Any) -> str:
    if name == "batch_size" and value is None:
        return "full batch"
    if name in _WORDS and value is not None:
        words = _WORDS[name].format(value)
        return words.removesuffix("s") if value == 1 else words
    return f"{name.replace('_', ' ')} {value}"
