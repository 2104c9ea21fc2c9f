"""A data set on the device, as a model is given it."""

import dataclasses
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedcohort.federation import Dataset
from fedcohort.randomness import generator
from fedcohort.simulation.config import RunConfig
from fedcohort.training.inputs import prepare_inputs, prepare_targets
from fedcohort.training.problem import Data


@dataclasses.dataclass(frozen=True)
class DeviceData:
    """Inputs and targets on the device.

    Attributes
    ----------
    train, test : (float32 or int64 [N, ...], Tensor [N, ...])
        All samples; the test part may be empty.
    subset : (float32 or int64 [n, ...], Tensor [n, ...])
        The part of the training set that is evaluated until the last round.
    """

    train: Data
    test: Data
    subset: Data


def load_device_data(dataset: Dataset, config: RunConfig, device: torch.device) -> DeviceData:
    """Put a data set on the device, scaled as `config` says."""
    standard = config.inputs == "standard"

    def place(x: NDArray[Any], y: NDArray[Any]) -> Data:
        inputs = prepare_inputs(x, dataset, standard=standard, device=device)
        return inputs, prepare_targets(y, device)

    train = place(dataset.x_train, dataset.y_train)
    test = place(dataset.x_test, dataset.y_test)
    if config.eval_samples is None or config.eval_samples >= len(dataset.y_train):
        return DeviceData(train, test, train)
    groups = dataset.label_groups
    groups = np.zeros(len(dataset.y_train), np.int64) if groups is None else groups
    chosen = torch.from_numpy(stratified(groups, config.eval_samples)).to(device)
    return DeviceData(train, test, (train[0][chosen], train[1][chosen]))


def stratified(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Choose `count` samples, each class with its share; the same ones for every run."""
    shuffled = generator(0, "evaluation subset").permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    # Equally spaced places in the list sorted by class hold each class in proportion.
    return np.sort(by_class[np.arange(count) * len(labels) // count])
