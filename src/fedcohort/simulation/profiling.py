"""What each client of a run sends once."""

import copy
import dataclasses
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcohort.federation import Federation
from fedcohort.profiles import (
    OutputGradients,
    fc1_profiles,
    gradient_profiles,
    output_gradients,
    private_profiles,
    representative_gradient_profiles,
)
from fedcohort.profiles.private import bounded_profiles
from fedcohort.randomness import generator
from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.jobs import order_keys
from fedcohort.training.modules import (
    in_fast_layout,
    named_state,
    normalisation_names,
    trained_names,
)
from fedcohort.training.problem import Data, Jobs, LocalProblem
from fedcohort.training.task import Task
from fedcohort.training.trainer import Trainer
from fedcohort.training.workers import in_workers

# Of a piece of work on a CPU, and of a forward pass: few, so that values stay in the cache.
_CLIENTS_AT_ONCE, _SAMPLES_AT_ONCE = 8, 200


def client_profiles(
    config: RunConfig, first: LocalProblem, federation: Federation, trainer: Trainer
) -> NDArray[np.float32]:
    """Return what each client sends once, float32 [C, Q].

    `first` is the model with its first weights, the data and the local work; its jobs are not
    looked at. `trainer` does the local training that representative gradients are read from.
    """
    model, (x, y) = first.model.eval(), first.data
    samples = torch.from_numpy(federation.partition.indices).to(x.device)
    sizes = torch.from_numpy(federation.sizes).to(x.device)
    if (promise := config.promise) is not None:

        def noise(client: int, count: int) -> NDArray[np.float64]:
            return generator(config.seed, "profile noise", client).standard_normal(count)

        return private_profiles(
            model, x, samples, sizes, promise, noise=noise, layer=config.profile_layer
        )
    if config.profile == "gradient":
        if config.normalisation == "local":
            model = copy.deepcopy(model)
            sent = _sent_names(config, model)
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name in sent)
        profiles = gradient_profiles(model, x, y, samples, sizes, first.task.losses)
    elif config.profile == "representative-gradient":
        profiles = _representative(config, first, federation, trainer)
    elif x.device.type == "cpu":
        profiles = _on_cpu(model, x, samples, sizes, config.profile_layer)
    else:
        profiles = fc1_profiles(model, x, samples, sizes, layer=config.profile_layer)
    return profiles.cpu().numpy()


def check_layer(config: RunConfig, model: nn.Module, x: Tensor) -> None:
    """Refuse a model or layer that profiles, here of some inputs [n, ...], cannot be read from."""
    own, samples, size = copy.deepcopy(model).eval(), torch.arange(len(x)), torch.tensor([len(x)])
    profiles = fc1_profiles if config.promise is None else bounded_profiles
    profiles(own, x, samples, size, layer=config.profile_layer)


def client_output_gradients(
    model: nn.Module, data: Data, federation: Federation, task: Task
) -> OutputGradients:
    """Return the gradients by the outputs of `model`, the first one, of all clients."""
    x, y = data
    samples = torch.from_numpy(federation.partition.indices).to(x.device)
    sizes = torch.from_numpy(federation.sizes).to(x.device)
    if x.device.type != "cpu":
        return output_gradients(model, x, y, samples, sizes, task.losses)
    fast = in_fast_layout(model, x)

    def of_piece(part: tuple[Tensor, Tensor]) -> OutputGradients:
        return output_gradients(fast, x, y, *part, task.losses, samples_at_once=_SAMPLES_AT_ONCE)

    found = in_workers(of_piece, _pieces(samples, sizes))
    return OutputGradients(
        torch.cat([piece.means for piece in found]), torch.cat([piece.squares for piece in found])
    )


def _on_cpu(
    model: nn.Module, x: Tensor, samples: Tensor, sizes: Tensor, layer: str | None
) -> Tensor:
    """Return FC-1 profiles, some clients on each core; they do not depend on the cores' number."""
    fast = in_fast_layout(model, x)

    def profile(part: tuple[Tensor, Tensor]) -> Tensor:
        # A copy per piece, since what is read from a module is kept with the module.
        own = copy.deepcopy(fast)
        return fc1_profiles(own, x, *part, layer=layer, samples_at_once=_SAMPLES_AT_ONCE)

    return torch.cat(in_workers(profile, _pieces(samples, sizes)))


def _pieces(samples: Tensor, sizes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Divide clients into pieces of work: their samples, and how many each has."""
    counts = torch.split(sizes, _CLIENTS_AT_ONCE)
    parts = torch.split(samples, [int(count.sum()) for count in counts])
    return zip(parts, counts, strict=True)


def _representative(
    config: RunConfig, first: LocalProblem, federation: Federation, trainer: Trainer
) -> Tensor:
    """Return what local training from the first model changes, float32 [C, d]."""
    state = {name: values.detach().clone() for name, values in named_state(first.model)}
    clients = np.arange(len(federation))
    jobs = Jobs(
        model=torch.zeros(len(clients), dtype=torch.int64),
        start=torch.from_numpy(federation.partition.offsets[:-1]),
        size=torch.from_numpy(federation.sizes),
        key=torch.from_numpy(order_keys(config.seed, 0, clients)),
        passes=torch.full((len(clients),), config.epochs, dtype=torch.float64),
    )
    problem = dataclasses.replace(
        first,
        stacked={name: values[None] for name, values in state.items()},
        jobs=jobs,
        pool=torch.from_numpy(federation.partition.indices).to(first.device),
    )
    trained = trainer.train(problem).parameters
    names = _sent_names(config, first.model)
    return representative_gradient_profiles(
        {name: state[name] for name in names}, {name: trained[name] for name in names}
    )


def _sent_names(config: RunConfig, model: nn.Module) -> list[str]:
    """Return the parameters that clients send: what they keep is in no profile either."""
    kept = normalisation_names(model) if config.normalisation == "local" else []
    return [name for name in trained_names(model) if name not in kept]
