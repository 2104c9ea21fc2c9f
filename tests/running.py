"""Runs, really done, for tests that look at what comes of them."""

import dataclasses

import torch

from fedcohort.simulation.execution.runner import prepare_study, run_study
from fedcohort.simulation.lockstep import Lockstep
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.study import study_of_runs


def run(configs, store, **options):
    """Do runs on the CPU that the store does not hold yet, and tell whether all are finished."""
    return run_study(prepare_study(study_of_runs(configs), device="cpu"), store, **options)


def lockstep_of(*configs, dataset=None, trainer=None):
    """Return runs in lockstep on the CPU; a data set that is given takes the place of theirs."""
    materials = Materials({configs[0].dataset: dataset} if dataset is not None else None)
    return Lockstep(configs, materials, torch.device("cpu"), trainer=trainer)


def without_times(record):
    """Return a round's record without what depends on the clock."""
    return dataclasses.replace(record, seconds=0.0, selection_seconds=0.0)
