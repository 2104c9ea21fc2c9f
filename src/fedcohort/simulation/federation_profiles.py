"""The profiles of a run's clients, without the run."""

import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray

from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.lockstep import Lockstep
from fedcohort.simulation.materials import Materials


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
