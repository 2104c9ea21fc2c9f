"""A data set on the device, as a model is given it."""

import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcohort.federation import Dataset
from fedcohort.randomness import generator
from fedcohort.simulation.config import RunConfig
from fedcohort.training.problem import Data


@dataclasses.dataclass(frozen=True)
class DeviceData:
    """Inputs and labels on the device.

    Attributes
    ----------
    train, test : (float32 [N, ...], int64 [N])
        All samples; the test part may be empty.
    subset : (float32 [n, ...], int64 [n])
        The part of the training set that is evaluated until the last round.
    """

    train: Data
    test: Data
    subset: Data


def load_device_data(dataset: Dataset, config: RunConfig, device: torch.device) -> DeviceData:
    """Put a data set on the device, scaled as `config` says."""

    def inputs(values: NDArray[np.uint8] | NDArray[np.float32]) -> Tensor:
        x = torch.from_numpy(np.array(values)).to(device).float().div_(dataset.scale)
        return x.sub_(dataset.mean).div_(dataset.std) if config.inputs == "standard" else x

    train = inputs(dataset.x_train), torch.from_numpy(dataset.y_train).to(device)
    test = inputs(dataset.x_test), torch.from_numpy(dataset.y_test).to(device)
    if config.eval_samples is None or config.eval_samples >= len(dataset.y_train):
        return DeviceData(train, test, train)
    chosen = torch.from_numpy(_stratified(dataset.y_train, config.eval_samples)).to(device)
    return DeviceData(train, test, (train[0][chosen], train[1][chosen]))


def _stratified(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Choose `count` samples, each class with its share; the same ones for every run."""
    shuffled = generator(0, "evaluation subset").permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    # Equally spaced places in the list sorted by class hold each class in proportion.
    return np.sort(by_class[np.arange(count) * len(labels) // count])
