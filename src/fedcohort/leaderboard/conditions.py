"""The conditions of a leaderboard: settings in which many selectors ran with the same seeds."""

import dataclasses
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import PurePath

from fedcohort.errors import InvalidParameterError, UnknownNameError
from fedcohort.report.grouping import dataset_title, skew_of, skew_title
from fedcohort.simulation.config import SETTINGS, RunConfig
from fedcohort.simulation.scores import Target
from fedcohort.simulation.study import Study

BASELINE = "fedavg"
_FEWEST_SELECTORS = 6


@dataclasses.dataclass(frozen=True)
class Condition:
    """One setting that selectors are compared in.

    Attributes
    ----------
    name : str
        What the command line calls it, such as ``digits-1-dropout``.
    title : str
        What tables and pictures call it, such as ``Digits, ξ = 1, 30 % drop out``.
    config : RunConfig
        Its settings, as fedavg's run with seed 0.
    target : Target
        What rounds are counted to.
    seeds : tuple of int
        Those of all selectors, rising.
    selectors : tuple of str
        Who ran in it.
    """

    name: str
    title: str
    config: RunConfig
    target: Target
    seeds: tuple[int, ...]
    selectors: tuple[str, ...]

    def runs(self, selector: str, seeds: Iterable[int] | None = None) -> list[RunConfig]:
        """Return the runs of a selector in this condition; with all seeds if none are given."""
        today = dataclasses.replace(self.config, selector=selector).of_today()
        seeds = self.seeds if seeds is None else seeds
        return [dataclasses.replace(today, seed=seed) for seed in seeds]


def conditions_of(
    configs: Iterable[RunConfig], targets: Mapping[str, Target | None]
) -> list[Condition]:
    """Find the conditions among many runs: those in which fedavg and five others have a target.

    Parameters
    ----------
    configs : iterable of RunConfig
        The runs.
    targets : dict of Target
        What rounds are counted to, by run key; runs without one are passed over.
    """
    found: dict[RunConfig, dict[str, list[int]]] = {}
    goals: dict[RunConfig, Target] = {}
    for config in configs:
        if (target := targets.get(config.key)) is not None:
            setting = setting_of(config)
            found.setdefault(setting, {}).setdefault(config.selector, []).append(config.seed)
            goals.setdefault(setting, target)
    compared = {s: r for s, r in found.items() if BASELINE in r and len(r) >= _FEWEST_SELECTORS}
    conditions = []
    for setting, runs in compared.items():
        seeds = sorted(runs[BASELINE])
        whole = tuple(name for name, own in runs.items() if sorted(own) == seeds)
        like = [other for other in compared if _name(other) == _name(setting)]
        more = _told_apart(setting, like)
        name = "-".join([_name(setting), *map(_slug, more)])
        title = ", ".join([dataset_title(setting.dataset), hardship(setting), *more])
        conditions.append(Condition(name, title, setting, goals[setting], tuple(seeds), whole))
    return conditions


def setting_of(config: RunConfig) -> RunConfig:
    """Return what the runs of all selectors and seeds in a condition share."""
    return dataclasses.replace(
        config, selector=BASELINE, seed=0, selector_revision=1, averaging_revision=1
    )


def conditions_of_study(study: Study) -> list[Condition]:
    """Find the conditions of a study, by what its parts say."""
    targets = {config.key: part.target for part in study.parts for config in part.configs}
    return conditions_of(study.configs, targets)


def choose(conditions: Sequence[Condition], wanted: Sequence[str]) -> list[Condition]:
    """Return some conditions in their order, by name or, all of a data set, by the data set's."""
    datasets = dict.fromkeys(condition.config.dataset for condition in conditions)
    names = [*datasets, *(condition.name for condition in conditions)]
    if not wanted:
        raise InvalidParameterError(f"Name a condition, or a data set: {', '.join(names)}.")
    for name in wanted:
        if name not in names:
            raise UnknownNameError("condition", name, names)
    return [c for c in conditions if c.name in wanted or c.config.dataset in wanted]


def hardship(config: RunConfig) -> str:
    """Say what is hard about a setting, such as ``ξ = 1, 30 % drop out``."""
    words = [skew_title(skew_of(config))]
    if config.size_spread:
        words.append("unequal sizes")
    if config.dropout:
        words.append(f"{config.dropout:.0%} drop out".replace("%", " %"))
    if config.speed_spread:
        words.append("stragglers")
    if config.availability != "always":
        words.append(f"availability {config.availability}")
    return ", ".join(words)


def _told_apart(config: RunConfig, like: Sequence[RunConfig]) -> list[str]:
    """Say how a setting departs from the first of its name; by rounds only if nothing else does.

    The first goes without saying, so that it keeps its name when others come after it.
    """
    among = SETTINGS.keys() - {"selector", "seed"}
    shorter = {other: _departures(other, like[0], among - {"rounds"}) for other in like}
    enough = len(set(map(tuple, shorter.values()))) == len(like)
    return shorter[config] if enough else _departures(config, like[0], among)


def _departures(config: RunConfig, first: RunConfig, among: Container[str]) -> list[str]:
    values = {name: getattr(config, name) for name in SETTINGS if name in among}
    return [SETTINGS[n].say(value) for n, value in values.items() if value != getattr(first, n)]


def _name(config: RunConfig) -> str:
    words = [PurePath(config.dataset).stem, skew_of(config)]
    words += ["unequal"] if config.size_spread else []
    words += ["dropout"] if config.dropout else []
    words += ["stragglers"] if config.speed_spread else []
    words += [config.availability] if config.availability != "always" else []
    return "-".join(map(_slug, words))


def _slug(words: str) -> str:
    return re.sub(r"[^\w.]+", "-", words).strip("-")
