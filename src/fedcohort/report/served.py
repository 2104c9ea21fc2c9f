"""How well the clients of a group of runs are served in the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcohort.metrics import worst_share
from fedcohort.simulation.scores import FinalScore, Kind, Part

if TYPE_CHECKING:
    from fedcohort.simulation.config import RunConfig
    from fedcohort.simulation.store import Store

FINAL_SCORE_COLUMNS: dict[Kind, tuple[str, ...]] = {
    "client": ("part", "client", "name", "samples", "score", "loss"),
    "class": ("part", "class", "samples", "score", "loss"),
}


@dataclasses.dataclass(frozen=True)
class Served:
    """The final models' scores by client, over the seeds.

    Attributes
    ----------
    part : {"train", "test"}
        What clients were measured on: the samples they train on, or those of the test clients.
    clients : int
        How many there are.
    mean, deviation, worst_decile : float
        Mean and standard deviation over the clients, and the mean of the worst tenth of them; each
        a mean over the seeds.
    """

    part: Part
    clients: int
    mean: float
    deviation: float
    worst_decile: float


@dataclasses.dataclass(frozen=True)
class WorstClass:
    """The class that is recognised least, over the seeds.

    Attributes
    ----------
    number : int
        Of the class.
    recognised : float
        The share of its samples that is recognised.
    """

    number: int
    recognised: float


def served_by(store: Store, configs: Sequence[RunConfig]) -> tuple[Served, ...]:
    """Return how the clients of runs that differ in the seed alone are served.

    Nothing of runs that are not finished, or were done before scores by client were kept.
    """
    found = []
    by_run = [store.final_scores(config.key, "client") for config in configs]
    parts: tuple[Part, ...] = ("train", "test")
    for part in parts:
        seeds = [_known(scores, part) for scores in by_run]
        if all(len(seed) for seed in seeds):
            worst = [worst_share(seed) for seed in seeds]
            found.append(
                Served(
                    part,
                    max(len(seed) for seed in seeds),
                    float(np.mean([seed.mean() for seed in seeds])),
                    float(np.mean([seed.std() for seed in seeds])),
                    float(np.mean([w for w in worst if w is not None])),
                )
            )
    return tuple(found)


def worst_class(store: Store, configs: Sequence[RunConfig]) -> WorstClass | None:
    """Return the class that the final models recognise least, if there are classes."""
    shares: dict[int, list[float]] = {}
    for config in configs:
        for score in store.final_scores(config.key, "class"):
            if score.score is not None:
                shares.setdefault(score.number, []).append(score.score)
    if not shares:
        return None
    number = min(shares, key=lambda n: float(np.mean(shares[n])))
    return WorstClass(number, float(np.mean(shares[number])))


def final_score_rows(
    store: Store, configs: Sequence[RunConfig], kind: Kind
) -> Iterator[tuple[RunConfig, dict[str, Any]]]:
    """Yield how the final models of some runs do, client by client or class by class.

    A client has the name that the data give it, by which it is known in both parts; None without.
    """
    for config in configs:
        scores = store.final_scores(config.key, kind)
        names = _client_names(store, config) if scores and kind == "client" else {}
        for score in scores:
            values = dataclasses.asdict(score)
            values |= {kind: score.number, "name": names.get((score.part, score.number))}
            yield config, {column: values[column] for column in FINAL_SCORE_COLUMNS[kind]}


def _client_names(store: Store, config: RunConfig) -> dict[tuple[Part, int], str]:
    """Return what the data call clients, by part and number."""
    arrays = store.federation(config)
    parts: dict[Part, str] = {"train": "client_names", "test": "test_client_names"}
    return {
        (part, number): str(name)
        for part, key in parts.items()
        for number, name in enumerate(arrays.get(key, ()))
    }


def _known(scores: Sequence[FinalScore], part: Part) -> Any:
    return np.array([s.score for s in scores if s.part == part and s.score is not None])
