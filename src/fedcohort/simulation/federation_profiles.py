"""What a run's clients would send once, without the run."""

import copy
import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray

from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.device_data import load_device_data
from fedcohort.simulation.lockstep import Lockstep
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.profiling import client_output_gradients


def profiles_and_sizes(
    config: RunConfig, materials: Materials, device: torch.device
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return what each client of a run would send once [C, Q], and its samples [C].

    The run's selector does not matter.
    """
    profiled = dataclasses.replace(config, selector="match")
    profiles = Lockstep([profiled], materials, device).profiles(0)
    assert profiles is not None  # the selector needs them
    return profiles, materials.federation(config).sizes


def agreements_and_shared(
    config: RunConfig, materials: Materials, device: torch.device
) -> tuple[NDArray[np.float64], float]:
    """Return how far the gradients of each client's samples agree [C], and those of all samples.

    See `fedcohort.profiles.agreement`; costs a forward pass of the first model over all samples.
    """
    federation = materials.federation(config)
    model = copy.deepcopy(materials.model(config)).to(device).eval()
    data = load_device_data(materials.dataset(config), config, device).train
    gradients = client_output_gradients(model, data, federation, materials.task(config))
    sizes = torch.from_numpy(federation.sizes).to(device)
    return gradients.agreements.cpu().numpy(), gradients.shared(sizes)
