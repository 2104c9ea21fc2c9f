"""The command that does a group of runs again."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fedcohort.report.summary import Summary

if TYPE_CHECKING:
    from fedcohort.simulation.config import RunConfig


def redo_commands(summaries: Iterable[Summary], out: str) -> list[str]:
    """Return the ``fedcohort run`` commands that make these runs, one a setting.

    Parameters
    ----------
    summaries : iterable of Summary
        The groups; those that differ in the selector alone share a command.
    out : str
        The folder to name.
    """
    shared: dict[tuple[RunConfig, tuple[int, ...], float | None], list[str]] = {}
    for summary in summaries:
        setting = dataclasses.replace(summary.config, selector="fedavg", seed=0)
        what = setting, summary.seeds, summary.target
        shared.setdefault(what, []).append(summary.selector)
    commands = []
    for (setting, seeds, target), selectors in shared.items():
        words = ["fedcohort", "run", *_options(setting)]
        for selector in selectors:
            words += ["--selector", selector]
        words += ["--seeds", _seeds(seeds)]
        if target is not None:
            words += ["--target", f"{target:g}"]
        commands.append(shlex.join([*words, "--out", out]))
    return commands


def _options(setting: RunConfig) -> list[str]:
    always = ("dataset", "skew", "clients", "cohort", "rounds", "epochs", "lr")
    words = []
    for field in dataclasses.fields(setting):
        value = getattr(setting, field.name)
        option = f"--{field.name.replace('_', '-')}"
        if field.name in ("selector", "seed"):
            continue
        if field.name == "eval_samples":
            words += [option, "all" if value is None else str(value)]
        elif value is True:
            words.append(option)
        elif field.name in always or value != field.default:
            words += [option, f"{value:g}" if isinstance(value, float) else str(value)]
    return words


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}..{seeds[-1]}"
    return ",".join(map(str, seeds))
