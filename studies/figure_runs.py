"""Which runs of a store a figure of the paper shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from drawing import NotInStoreError
from numpy.typing import NDArray

from fedcohort.report.explorer import by_main_class
from fedcohort.report.summary import Summary

if TYPE_CHECKING:
    from fedcohort.simulation.store import Store

INITIALISATIONS = ("xavier-normal", "xavier-uniform", "kaiming-normal", "kaiming-uniform")
_FEW_CLIENTS = 20

# Profiles [c, Q] and main classes [c] of the same clients, ordered by main class.
ProfilesByInit = dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]]


def plain_comparison(summaries: Sequence[Summary]) -> list[Summary]:
    """Return the comparison of selectors: of each data set and skew the setting with most runs."""
    usual = [
        s
        for s in summaries
        if s.config.profile == "fc1" and s.config.init == "default" and s.evaluated_rounds.size
    ]
    weight: dict[str, tuple[int, int]] = {}
    for s in usual:
        runs, rounds = weight.get(s.panel, (0, 0))
        weight[s.panel] = runs + len(s.seeds), max(rounds, s.rounds)
    chosen: dict[tuple[str, str], str] = {}
    for s in usual:
        key = s.dataset, s.skew
        if key not in chosen or weight[s.panel] > weight[chosen[key]]:
            chosen[key] = s.panel
    if not chosen:
        raise NotInStoreError("no run with FC-1 profiles and the default initialisation")
    return [s for s in usual if chosen[s.dataset, s.skew] == s.panel]


def widest_panel(
    summaries: Sequence[Summary], setting: Callable[[Summary], str], missing: str
) -> list[Summary]:
    """Return the groups of the panel that has the most values of a setting, at least two.

    Parameters
    ----------
    summaries : sequence of Summary
        The groups that a figure could show.
    setting : callable
        The value that tells them apart.
    missing : str
        What to call them when there are not enough.
    """
    panels: dict[str, list[Summary]] = {}
    for s in summaries:
        if s.evaluated_rounds.size > 1:
            panels.setdefault(s.panel, []).append(s)
    best = max(panels.values(), key=lambda p: len({setting(s) for s in p}), default=[])
    if len({setting(s) for s in best}) < 2:
        raise NotInStoreError(f"no {missing} in one setting")
    return best


def profiles_by_initialisation(store: Store, summaries: Sequence[Summary]) -> ProfilesByInit:
    """Return what about 20 clients sent under each of the paper's initialisations.

    Returns
    -------
    dict of (float32 [c, Q], int64 [c])
        Profiles and main classes of the same clients, ordered by main class, by initialisation.
    """
    federations: dict[tuple[object, ...], dict[str, Summary]] = {}
    for s in summaries:
        config = s.config
        if config.profile != "fc1" or config.init not in INITIALISATIONS:
            continue
        who = config.dataset, config.skew, config.clients, config.samples_per_client
        how = config.size_spread, config.reuse, config.inputs, config.seed
        what = config.model, config.profile_layer
        if "profiles" in store.federation(config):
            federations.setdefault((*who, *how, *what), {}).setdefault(config.init, s)
    best = min(
        federations.values(),
        key=lambda f: (-len(f), abs(next(iter(f.values())).participation.shape[1] - _FEW_CLIENTS)),
        default={},
    )
    if len(best) < 2:
        raise NotInStoreError("no profiles under more than one of the paper's initialisations")
    found = {}
    for init in filter(best.__contains__, INITIALISATIONS):
        arrays = store.federation(best[init].config)
        order = by_main_class(arrays["label_counts"])
        order = order[np.linspace(0, len(order) - 1, min(len(order), _FEW_CLIENTS)).astype(int)]
        found[init] = arrays["profiles"][order], arrays["label_counts"].argmax(axis=1)[order]
    return found
