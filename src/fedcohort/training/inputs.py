"""Samples and targets as models are given them."""

from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcohort.federation import Dataset

Values = TypeVar("Values", Tensor, NDArray[Any])


def prepare_inputs(
    values: NDArray[Any],
    dataset: Dataset,
    *,
    standard: bool,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return samples [n, ...] as a model is given them: float32, or int64 [n, T] of tokens.

    With `standard`, images and tables get mean 0 and variance 1, per channel or column, over the
    training set.
    """
    given = torch.from_numpy(np.array(values)).to(device)
    moments = dataset.standardisation()
    if moments is None:
        return given.long()
    x = given.float().div_(dataset.scale)
    if not standard:
        return x
    mean, std = (torch.from_numpy(moment).to(device) for moment in moments)
    return x.sub_(mean).div_(std)


def some_samples(dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of four samples, by which it is seen what a model does."""
    x = prepare_inputs(a_few(dataset.x_train), dataset, standard=True)
    return x, prepare_targets(a_few(dataset.y_train))


def a_few(values: Values) -> Values:
    """Return four of the samples [n, ...], some of them twice where there are fewer."""
    # Never one, whose batch may look as if it were none.
    return values[np.arange(4) * len(values) // 4]


def prepare_targets(values: NDArray[Any], device: torch.device | str = "cpu") -> Tensor:
    """Return targets: int64 of classes and tokens, float32 of numbers, uint8 of labels."""
    given = torch.from_numpy(np.array(values)).to(device)
    return given.float() if given.is_floating_point() else given
