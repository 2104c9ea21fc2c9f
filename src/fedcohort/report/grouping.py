"""Which runs belong together: groups that differ in the seed alone, and panels of groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePath
from typing import Any

from fedcohort.simulation.config import SETTINGS, RunConfig

Values = tuple[Any, ...]

# What is compared within one panel; everything else must be the same for a fair comparison.
_COMPARED = {name for name, declared in SETTINGS.items() if declared.compared}


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
    by_setting: dict[Values, list[RunConfig]] = {}
    for config in dict.fromkeys(configs):
        by_setting.setdefault(_values(config, without={"seed"}), []).append(config)
    panels: dict[Values, list[list[RunConfig]]] = {}
    for runs in by_setting.values():
        panels.setdefault(_values(runs[0], without={"seed", *_COMPARED}), []).append(runs)
    firsts = [members[0][0] for members in panels.values()]
    groups = []
    for first, members in zip(firsts, panels.values(), strict=True):
        like = [other for other in firsts if _place(other) == _place(first)]
        apart = what_differs(first, like, SETTINGS.keys() - _COMPARED - {"seed"})
        title = ", ".join([panel_title(first.dataset, skew_of(first)), *apart])
        for runs in members:
            same = [other[0] for other in members if other[0].selector == runs[0].selector]
            # The usual case keeps the plain name; only what departs from it says how.
            label = " · ".join([runs[0].selector, *what_differs(runs[0], same, _COMPARED)])
            ordered = tuple(sorted(runs, key=lambda config: config.seed))
            groups.append(Group(ordered, title, label))
    return groups


def _values(config: RunConfig, without: Collection[str]) -> Values:
    return tuple(getattr(config, name) for name in SETTINGS if name not in without)


def _place(config: RunConfig) -> tuple[str, str]:
    return config.dataset, skew_of(config)


def panel_title(dataset: str, skew: str) -> str:
    """Return a data set and a skew as a reader knows them, such as ``MNIST, ξ = 0.8``."""
    return f"{dataset_title(dataset)}, {skew_title(skew)}"


def skew_of(config: RunConfig) -> str:
    """Return how a run's data are divided; ``natural`` where the data say so themselves."""
    return "natural" if config.own_clients else config.skew


def dataset_title(dataset: str) -> str:
    """Return a data set's name as it is written in text; of a file, its name without folders."""
    known = {
        "digits": "Digits",
        "mnist": "MNIST",
        "fashion-mnist": "Fashion-MNIST",
        "cifar-10": "CIFAR-10",
        "mnist-by-writer": "MNIST by writer",
        "shakespeare": "Shakespeare",
    }
    return known.get(dataset.lower(), PurePath(dataset).name)


def skew_title(skew: str) -> str:
    """Return a skew as it is written in text."""
    kind, _, value = skew.strip().partition(":")
    if kind.lower() == "natural":
        return "its own clients"
    if kind.lower() == "iid":
        return "IID"
    if kind.lower() == "dirichlet":
        return f"Dirichlet({value})"
    if kind.lower() == "shards":
        return f"{value} shards per client"
    return f"ξ = {skew}"


def what_differs(
    setting: RunConfig, others: Sequence[RunConfig], among: Collection[str]
) -> list[str]:
    """Say in which settings one of several differs from the others.

    What most runs leave as it is goes without saying, beside others that do not.
    """
    words = []
    for name, declared in SETTINGS.items():
        value = getattr(setting, name)
        silent = (declared.quiet or declared.compared) and value == declared.default
        silent = silent or (declared.divides and setting.own_clients)
        if name in among and not silent and len({getattr(other, name) for other in others}) > 1:
            words.append(declared.say(value))
    return words
