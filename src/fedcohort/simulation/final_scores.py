"""Who is served how well in the end: the final model by client and by class."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcohort.federation import Dataset, Federation
from fedcohort.simulation.client_groups import client_groups, groups_by
from fedcohort.simulation.scores import FinalScore, Kind, Part
from fedcohort.training.problem import Groups

# Tasks in which a sample has one class.
_ONE_CLASS = ("classification", "binary", "next-token")


@dataclasses.dataclass(frozen=True)
class FinalGroups:
    """Groups of samples that a final model is measured on.

    Attributes
    ----------
    part : {"train", "test"}
        Whose samples they are.
    kind : {"client", "class"}
        What a group is.
    numbers : int64 [m]
        Which client or class each is.
    groups : Groups
        Their samples.
    ids : int64 [m], optional
        The training clients that measure, where they are known.
    score : str, optional
        What is measured, if it is not the run's score.
    """

    part: Part
    kind: Kind
    numbers: NDArray[np.int64]
    groups: Groups
    ids: NDArray[np.int64] | None = None
    score: str | None = None

    def scored(self, scores: Tensor, losses: Tensor) -> list[FinalScore]:
        """Return what was measured, float64 [m] each, as the store keeps it."""
        columns = (values.tolist() for values in (self.groups.sizes, scores, losses))
        return [
            FinalScore(self.part, self.kind, number, size, _finite(score), _finite(loss))
            for number, size, score, loss in zip(self.numbers.tolist(), *columns, strict=True)
        ]


def final_groups(federation: Federation, device: torch.device) -> Iterator[FinalGroups]:
    """Yield what a final model is measured on, by client and by class.

    Clients are measured on their training samples and, where the data have test clients, on those
    of each of these. Classes are measured on the test samples, or on the training samples where
    there are none; not where samples have no class, or several.
    """
    dataset = federation.dataset
    ids, groups = client_groups(federation, device)
    yield FinalGroups("train", "client", ids, groups, ids)
    if dataset.test_client is not None and len(dataset.test_client):
        numbers, groups = groups_by(dataset.test_client, device)
        yield FinalGroups("test", "client", numbers, groups, _also_training(dataset, numbers))
    part: Part = "test" if len(dataset.y_test) else "train"
    labels = dataset.y_test if part == "test" else dataset.y_train
    if dataset.task in _ONE_CLASS and labels.ndim == 1:
        numbers, groups = groups_by(labels, device)
        yield FinalGroups(part, "class", numbers, groups, score="accuracy")


def _also_training(dataset: Dataset, numbers: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return which training clients some test clients are; None if not all of them train."""
    known = {name: place for place, name in enumerate(dataset.client_names)}
    names = [dataset.test_client_names[number] for number in numbers]
    if not all(name in known for name in names):
        return None
    return np.array([known[name] for name in names], np.int64)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
