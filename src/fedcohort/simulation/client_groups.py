"""Clients and classes as groups of samples that models are measured on."""

import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcohort.federation import Federation
from fedcohort.simulation.device_data import stratified
from fedcohort.training.problem import Groups


def client_groups(
    federation: Federation, device: torch.device, most: int | None = None
) -> tuple[NDArray[np.int64], Groups]:
    """Return the clients that have samples, int64 [m], and the samples of each.

    With `most`, a stratified part of so many of the clients' samples is taken.
    """
    partition = federation.partition
    samples, owner = partition.indices, np.repeat(np.arange(len(federation)), partition.sizes)
    if most is not None and most < len(samples):
        labels = federation.dataset.label_groups
        own = np.zeros(len(samples), np.int64) if labels is None else labels[samples]
        chosen = stratified(own, most)
        samples, owner = samples[chosen], owner[chosen]
    clients, groups = groups_by(owner, device)
    indices = torch.from_numpy(samples).to(device)
    return clients, dataclasses.replace(groups, samples=indices[groups.samples])


def groups_by(owner: NDArray[np.int64], device: torch.device) -> tuple[NDArray[np.int64], Groups]:
    """Return the numbers that own samples, int64 [m], and the samples of each."""
    numbers, sizes = np.unique(owner, return_counts=True)
    samples = np.argsort(owner, kind="stable")
    return numbers, Groups(*(torch.from_numpy(v).to(device) for v in (samples, sizes)))


def mean_by_size(values: Tensor, sizes: Tensor) -> Tensor:
    """Return the mean of groups' values, float64 [m] → []; those that are no numbers count not."""
    there = values.isfinite()
    return torch.where(there, values * sizes, 0).sum() / torch.where(there, sizes, 0).sum()
