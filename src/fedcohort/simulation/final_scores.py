"""Who is served how well in the end: the final model by client and by class."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcohort.federation import Dataset
from fedcohort.simulation.scores import FinalScore, Kind, Part
from fedcohort.training.problem import Groups

# Tasks in which a sample has one class.
_ONE_CLASS = ("classification", "binary", "next-token")


def as_final_scores(
    part: Part,
    kind: Kind,
    numbers: NDArray[np.int64],
    groups: Groups,
    measured: tuple[Tensor, Tensor],
) -> list[FinalScore]:
    """Return what was measured on groups that are numbered so, int64 [m]."""
    columns = (values.tolist() for values in (groups.sizes, *measured))
    return [
        FinalScore(part, kind, number, size, _finite(score), _finite(loss))
        for number, size, score, loss in zip(numbers.tolist(), *columns, strict=True)
    ]


def groups_by(owner: NDArray[np.int64], device: torch.device) -> tuple[NDArray[np.int64], Groups]:
    """Return the numbers that own samples, int64 [m], and the samples of each."""
    numbers, sizes = np.unique(owner, return_counts=True)
    samples = np.argsort(owner, kind="stable")
    return numbers, Groups(*(torch.from_numpy(v).to(device) for v in (samples, sizes)))


def classes_of(dataset: Dataset) -> tuple[Part, NDArray[np.int64]] | None:
    """Return the class of each test sample, or of each training sample where there is no test part.

    None where samples have no class, or several.
    """
    part: Part = "test" if len(dataset.y_test) else "train"
    targets = dataset.y_test if part == "test" else dataset.y_train
    if dataset.task not in _ONE_CLASS or targets.ndim > 1:
        return None
    return part, targets.astype(np.int64, copy=False)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
