"""The command that does a group of runs again."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from fedcohort.report.summary import Summary
from fedcohort.simulation.config import SETTINGS, RunConfig
from fedcohort.simulation.scores import Target


def redo_commands(summaries: Iterable[Summary], out: str) -> list[str]:
    """Return the ``fedcohort run`` commands that make these runs in a folder, one a setting.

    Groups that differ in the selector alone share a command.
    """
    shared: dict[tuple[tuple[str, ...], tuple[int, ...], Target | None], dict[str, None]] = {}
    for summary in summaries:
        what = _options(summary.config), summary.seeds, summary.target
        # Once, even if its data or its code were replaced: only what is there now can be done.
        shared.setdefault(what, {})[summary.selector] = None
    commands = []
    for (options, seeds, target), selectors in shared.items():
        words = ["fedcohort", "run", *options]
        for selector in selectors:
            words += ["--selector", selector]
        words += ["--seeds", _seeds(seeds)]
        if target is not None:
            words += ["--target", f"{target.score:g}"]
            words += [] if target.on == "train" else ["--target-on", target.on]
        commands.append(shlex.join([*words, "--out", out]))
    return commands


def _options(config: RunConfig) -> tuple[str, ...]:
    """Return the options that do not go without saying."""
    words: list[str] = []
    for name, declared in SETTINGS.items():
        value = getattr(config, name)
        usual = (declared.quiet or declared.compared) and value == declared.option_default
        elsewhere = name in ("selector", "seed") or declared.group is None
        if usual or elsewhere or (declared.divides and config.own_clients):
            continue
        words += [declared.option] if value is True else [declared.option, declared.to_text(value)]
    return tuple(words)


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}..{seeds[-1]}"
    return ",".join(map(str, seeds))
