"""Who is served how well in the end: the final model by client and by class."""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcohort.federation import Dataset, Federation
from fedcohort.simulation.client_groups import client_groups, groups_by
from fedcohort.simulation.scores import FinalScore, Kind, Part
from fedcohort.training.problem import Groups

Measure = Callable[[Part, Groups, NDArray[np.int64] | None, str | None], tuple[Tensor, Tensor]]
"""From m groups of the training or the test samples to their scores and losses, float64 [m] each:
(part, groups, the training clients int64 [m] that measure, or None, and the score, or None for the
run's)."""

# Tasks in which a sample has one class.
_ONE_CLASS = ("classification", "binary", "next-token")


@dataclasses.dataclass(frozen=True)
class _Wanted:
    """Groups to measure, and whose they are."""

    part: Part
    kind: Kind
    numbers: NDArray[np.int64]
    groups: Groups
    ids: NDArray[np.int64] | None = None
    score: str | None = None


def measure_final(
    federation: Federation, device: torch.device, measure: Measure
) -> list[FinalScore]:
    """Measure a final model by client and by class.

    Clients are measured on their training samples and, where the data have test clients, on those
    of each of these. Classes are measured on the test samples, or on the training samples where
    there are none; not where samples have no class, or several.
    """
    found: list[FinalScore] = []
    for wanted in _wanted(federation, device):
        measured = measure(wanted.part, wanted.groups, wanted.ids, wanted.score)
        columns = (values.tolist() for values in (wanted.groups.sizes, *measured))
        found += [
            FinalScore(wanted.part, wanted.kind, number, size, _finite(score), _finite(loss))
            for number, size, score, loss in zip(wanted.numbers.tolist(), *columns, strict=True)
        ]
    return found


def _wanted(federation: Federation, device: torch.device) -> Iterator[_Wanted]:
    dataset = federation.dataset
    ids, groups = client_groups(federation, device)
    yield _Wanted("train", "client", ids, groups, ids)
    if dataset.test_client is not None and len(dataset.test_client):
        numbers, groups = groups_by(dataset.test_client, device)
        yield _Wanted("test", "client", numbers, groups, _also_training(dataset, numbers))
    part: Part = "test" if len(dataset.y_test) else "train"
    labels = dataset.y_test if part == "test" else dataset.y_train
    if dataset.task in _ONE_CLASS and labels.ndim == 1:
        numbers, groups = groups_by(labels, device)
        yield _Wanted(part, "class", numbers, groups, score="accuracy")


def _also_training(dataset: Dataset, numbers: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return which training clients some test clients are; None if not all of them train."""
    known = {name: place for place, name in enumerate(dataset.client_names)}
    names = [dataset.test_client_names[number] for number in numbers]
    if not all(name in known for name in names):
        return None
    return np.array([known[name] for name in names], np.int64)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
