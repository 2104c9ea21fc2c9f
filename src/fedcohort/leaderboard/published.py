"""The published runs, in one file that comes with the package.

``published.npz`` holds, for each condition, one array per field of `Entry` with a row per selector
and seed, and a text that says what the conditions are. ``python studies/publish.py`` makes it from
stores of results.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fedcohort.leaderboard.conditions import BASELINE, Condition
from fedcohort.leaderboard.entries import BY_SEED, Entry, read_entry
from fedcohort.simulation.config import SETTINGS, RunConfig
from fedcohort.simulation.scores import Target

if TYPE_CHECKING:
    from fedcohort.simulation.store import Store

FILE = Path(__file__).with_name("published.npz")
_ABOUT = "about"
# Sums over rounds are kept as what each evaluation adds, in the type that is summed to again.
_SUMS: dict[str, tuple[type, type]] = {
    "bytes": (np.int64, np.int64),
    "time": (np.float32, np.float64),
}
# Accuracies are counts over a number of samples, and kept as such: so they take half the room.
_COUNTED = ("train", "test")
_SAMPLES = "samples"
_MOST_SAMPLES = 10**6


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where the runs of a condition were made.

    Attributes
    ----------
    device, torch, precision : str
        The processor, the version of PyTorch, and what was multiplied in training.
    """

    device: str
    torch: str
    precision: str

    def __str__(self) -> str:
        return f"{self.device} (PyTorch {self.torch}, {self.precision})"


def origin_of(store: Store, config: RunConfig) -> Origin:
    """Return where a run of a store was made."""
    facts = store.facts(config.key)
    return Origin(facts["device"], str(facts.get("torch", "unknown")), config.precision)


class Published:
    """The published runs of a file.

    Parameters
    ----------
    path : path-like
        The file; by default the one that comes with the package.

    Attributes
    ----------
    conditions : tuple of Condition
        In the order of the study file.
    origins : dict of Origin
        By the condition's name.
    """

    def __init__(self, path: str | Path = FILE) -> None:
        self.path = Path(path)
        with np.load(self.path, allow_pickle=False) as arrays:
            about = json.loads(arrays[_ABOUT].tobytes())
        self.conditions = tuple(_condition(said) for said in about)
        self.origins = {said["name"]: Origin(**said["origin"]) for said in about}
        self._scores = {said["name"]: said["score"] for said in about}

    def entries(self, condition: Condition, seeds: Sequence[int]) -> dict[str, Entry]:
        """Return what all selectors did in a condition with some of its seeds, by selector."""
        kept = [condition.seeds.index(seed) for seed in seeds]
        with np.load(self.path, allow_pickle=False) as arrays:
            rounds = arrays[f"{condition.name}/evaluated_rounds"]
            fields = {name: _unpacked(arrays, f"{condition.name}/{name}") for name in BY_SEED}
        return {
            selector: Entry(
                selector=selector,
                seeds=tuple(seeds),
                target=condition.target,
                score=self._scores[condition.name],
                evaluated_rounds=rounds,
                **{name: values[place, kept] for name, values in fields.items()},
            )
            for place, selector in enumerate(condition.selectors)
        }


def write_published(file: BinaryIO, conditions: Sequence[Condition], store: Store) -> None:
    """Write all runs of some conditions, every one of which must be finished in the store."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    about = []
    for condition in conditions:
        found = [
            read_entry(store, condition.runs(selector), selector, condition.target)
            for selector in condition.selectors
        ]
        arrays[f"{condition.name}/evaluated_rounds"] = found[0].evaluated_rounds
        for name in BY_SEED:
            stacked = np.stack([getattr(entry, name) for entry in found])
            arrays |= _packed(f"{condition.name}/{name}", stacked)
        origin = dataclasses.asdict(origin_of(store, condition.runs(BASELINE)[0]))
        about.append(_said(condition) | {"score": found[0].score, "origin": origin})
    arrays[_ABOUT] = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    np.savez_compressed(file, allow_pickle=False, **arrays)


def _said(condition: Condition) -> dict[str, Any]:
    """Return a condition as plain values: settings that are as by default go without saying."""
    config = condition.config
    settings = {n: v for n, s in SETTINGS.items() if (v := getattr(config, n)) != s.default}
    del settings["selector"]
    target = {"target": condition.target.score, "target_on": condition.target.on}
    return {**dataclasses.asdict(condition), "config": settings, **target}


def _condition(said: dict[str, Any]) -> Condition:
    return Condition(
        said["name"],
        said["title"],
        RunConfig(selector=BASELINE, **said["config"]),
        Target(said["target"], said["target_on"]),
        tuple(said["seeds"]),
        tuple(said["selectors"]),
    )


def _packed(path: str, values: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the members of a file that hold the values of one field."""
    field = path.rpartition("/")[2]
    if field in _SUMS:
        return {path: np.diff(values, axis=-1, prepend=0).astype(_SUMS[field][0])}
    if field in _COUNTED and (samples := _samples(values)):
        counts = np.rint(values * samples).astype(np.min_scalar_type(samples))
        return {path: counts, f"{path}/{_SAMPLES}": np.array(samples)}
    return {path: values}


def _unpacked(arrays: Mapping[str, npt.NDArray[Any]], path: str) -> npt.NDArray[Any]:
    field = path.rpartition("/")[2]
    if field in _SUMS:
        summed: npt.NDArray[Any] = np.cumsum(arrays[path], axis=-1, dtype=_SUMS[field][1])
        return summed
    if f"{path}/{_SAMPLES}" in arrays:
        return np.asarray(arrays[path] / arrays[f"{path}/{_SAMPLES}"])
    return arrays[path]


def _samples(scores: npt.NDArray[Any]) -> int | None:
    """Return the number that all scores are counts over; None if there is none."""
    samples = 1
    for score in np.unique(scores):
        if not 0 <= score <= 1:
            return None
        fraction = Fraction(float(score)).limit_denominator(_MOST_SAMPLES)
        samples = math.lcm(samples, fraction.denominator)
        if samples > _MOST_SAMPLES:
            return None
    # The last bit of a share depends on the order in which the samples were summed.
    counted = np.rint(scores * samples) / samples
    return samples if np.allclose(counted, scores, rtol=0, atol=1e-12) else None
