"""What each client of a run sends once."""

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcohort.federation import Federation
from fedcohort.profiles import (
    fc1_profiles,
    gradient_profiles,
    private_profiles,
    representative_gradient_profiles,
)
from fedcohort.randomness import generator
from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.jobs import order_keys
from fedcohort.training.problem import Data, Jobs, LocalProblem, LocalWork
from fedcohort.training.trainer import Trainer
from fedcohort.training.workers import in_workers

# Profiled as one piece of work on a CPU.
_CLIENTS_AT_ONCE = 8


def client_profiles(
    config: RunConfig,
    model: nn.Module,
    federation: Federation,
    data: Data,
    trainer: Trainer,
    work: LocalWork,
) -> NDArray[np.float32]:
    """Return what each client sends once, float32 [C, Q].

    Parameters
    ----------
    config : RunConfig
        Says what a profile is.
    model : nn.Module
        With its first weights, on the device.
    federation : Federation
        Who holds what.
    data : (float32 [N, ...], int64 [N])
        All inputs and labels, on the device.
    trainer : Trainer
        Does the local training that representative gradients are read from.
    work : LocalWork
        What that training is.
    """
    x, y = data
    samples = torch.from_numpy(federation.partition.indices).to(x.device)
    sizes = torch.from_numpy(federation.sizes).to(x.device)
    if (promise := config.promise) is not None:

        def noise(client: int, count: int) -> NDArray[np.float64]:
            return generator(config.seed, "profile noise", client).standard_normal(count)

        return private_profiles(
            model, x, samples, sizes, promise, noise=noise, layer=config.profile_layer
        )
    if config.profile == "gradient":
        profiles = gradient_profiles(model, x, y, samples, sizes)
    elif config.profile == "representative-gradient":
        profiles = _representative(config, model, federation, data, trainer, work)
    elif x.device.type == "cpu":
        profiles = _on_cpu(model, x, samples, sizes, config.profile_layer)
    else:
        profiles = fc1_profiles(model, x, samples, sizes, layer=config.profile_layer)
    return profiles.cpu().numpy()


def _on_cpu(
    model: nn.Module, x: Tensor, samples: Tensor, sizes: Tensor, layer: str | None
) -> Tensor:
    """Return FC-1 profiles, some clients on each core; they do not depend on the cores' number."""
    counts = torch.split(sizes, _CLIENTS_AT_ONCE)
    parts = zip(torch.split(samples, [int(count.sum()) for count in counts]), counts, strict=True)
    # Convolutions of a CPU are fastest so, and on few samples, whose values stay in the cache.
    fast = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def profile(part: tuple[Tensor, Tensor]) -> Tensor:
        # A copy per piece, since what is read from a module is kept with the module.
        return fc1_profiles(copy.deepcopy(fast), x, *part, layer=layer, samples_at_once=200)

    return torch.cat(in_workers(profile, parts))


def _representative(
    config: RunConfig,
    model: nn.Module,
    federation: Federation,
    data: Data,
    trainer: Trainer,
    work: LocalWork,
) -> Tensor:
    """Return what local training from the first model changes, float32 [C, d]."""
    first = {name: p.detach().clone() for name, p in model.named_parameters()}
    clients = np.arange(len(federation))
    jobs = Jobs(
        model=torch.zeros(len(clients), dtype=torch.int64),
        start=torch.from_numpy(federation.partition.offsets[:-1]),
        size=torch.from_numpy(federation.sizes),
        key=torch.from_numpy(order_keys(config.seed, 0, clients)),
        passes=torch.full((len(clients),), config.epochs, dtype=torch.float64),
    )
    pool = torch.from_numpy(federation.partition.indices).to(data[0].device)
    stacked = {name: values[None] for name, values in first.items()}
    trained = trainer.train(LocalProblem(model, stacked, jobs, data, pool, work))
    return representative_gradient_profiles(first, trained.parameters)
