"""Which runs train as one program: a function of the study and of the device's memory.

Runs of one `RunConfig.lockstep_key` are taken seed by seed, so that a group holds all selectors of
some seeds: they share federations and profiles, and what is finished first is a fair comparison.
"""

import copy
import dataclasses
import math
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedcohort.federation import Dataset
from fedcohort.selection import Need
from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.local_work import local_work
from fedcohort.simulation.materials import Materials
from fedcohort.training.accelerators.choice import SlowPathWarning, choose_trainer
from fedcohort.training.inputs import some_samples
from fedcohort.training.modules import read_traits
from fedcohort.training.problem import NO_JOBS, LocalProblem

_FLOAT_BYTES = 4
# More runs at once do not train faster, and an interruption would cost more of them.
_MOST_RUNS = {"cpu": 32, "cuda": 128}
# A group's checkpoint: what is written at once and may be lost at once.
_MOST_STATE = 2 * 2**30
_SHARE_OF_MEMORY = 0.5
_EVALUATED_AT_ONCE = 2000
# Local models, gradients, velocities, steps and the models that they are averaged from.
_COPIES_OF_A_MODEL = 6
# Activations, their gradients and the patches that convolutions are multiplied from.
_COPIES_OF_ACTIVATIONS = 6
_LAYERS_AT_ONCE = 4
# So that the paper's CNN on MNIST costs what earlier versions wrote into stores.
_BYTES_PER_COST = 700


@dataclasses.dataclass(frozen=True)
class Pack:
    """Runs that will train in lockstep, and how much work one round of them is.

    Attributes
    ----------
    configs : tuple of RunConfig
        In the group's order.
    cost : float
        In units that are comparable between groups.
    """

    configs: tuple[RunConfig, ...]
    cost: float


def lockstep_groups(configs: Sequence[RunConfig]) -> list[list[RunConfig]]:
    """Gather runs that can be trained as one program, in the order they are given."""
    groups: dict[str, list[RunConfig]] = {}
    for config in configs:
        groups.setdefault(config.lockstep_key(), []).append(config)
    return list(groups.values())


def packer(
    materials: Materials, device: torch.device
) -> Callable[[Sequence[RunConfig]], list[Pack]]:
    """Return the function that packs runs for a device, whose memory limits the size of groups."""
    memory = _memory(device) * _SHARE_OF_MEMORY

    def pack(configs: Sequence[RunConfig]) -> list[Pack]:
        packs: list[Pack] = []
        for group in lockstep_groups(configs):
            dataset, model = materials.dataset(group[0]), materials.model(group[0])
            weight = _FLOAT_BYTES * sum(p.numel() for p in model.parameters())
            at_once = _at_once(group[0], materials, device)
            sizes = _Sizes(weight, *_activation_bytes(model, dataset), at_once)
            by_seed = sorted(group, key=lambda config: config.seed)
            for part in _split(by_seed, dataset, sizes, _MOST_RUNS[device.type], memory):
                part.sort(key=_turn)
                cost = sum(_cost(config, dataset, sizes) for config in part)
                packs.append(Pack(tuple(part), cost))
        return packs

    return pack


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """How many bytes a model has, and a sample takes that is trained on, and evaluated, about.

    And how many clients train at once; None: all.
    """

    weight: int
    activations: int
    evaluated: int
    at_once: int | None


def _split(
    configs: Sequence[RunConfig], dataset: Dataset, sizes: _Sizes, most: int, memory: float
) -> list[list[RunConfig]]:
    """Cut runs of one shape into parts that fit into memory, or are a single run."""
    parts: list[list[RunConfig]] = []
    saved = math.inf
    for config in configs:
        state = _state_bytes(config, sizes.weight, _clients(config, dataset))
        full = saved + state > _MOST_STATE or len(parts[-1]) == most
        if full or _part_bytes([*parts[-1], config], dataset, sizes) > memory:
            parts.append([])
            saved = 0.0
        parts[-1].append(config)
        saved += state
    return parts


def _part_bytes(runs: Sequence[RunConfig], dataset: Dataset, sizes: _Sizes) -> float:
    """Return the memory that runs of one shape need together on the device, about."""
    clients = sum(config.cohort for config in runs)
    models = clients * _COPIES_OF_A_MODEL * sizes.weight
    busy, judged = (clients, len(runs)) if sizes.at_once is None else (sizes.at_once, 1)
    trained = min(clients, busy) * _batch(runs[0], dataset) * sizes.activations
    return max(models + trained, judged * _EVALUATED_AT_ONCE * sizes.evaluated)


def _turn(config: RunConfig) -> int:
    """Return when in a round a run's selector should have its turn.

    Those that ask clients come first, while the device is not yet busy with others' training.
    """
    return 0 if config.make_selector().asks else 1


def _cost(config: RunConfig, dataset: Dataset, sizes: _Sizes) -> float:
    """Return the work of one round of a run, about, by the memory that its steps go through.

    Small models wait for memory more than for arithmetic.
    """
    steps = config.epochs * _client_size(config, dataset) / _batch(config, dataset)
    evaluated = (config.eval_samples or len(dataset.y_train)) + len(dataset.y_test)
    # A forward pass is a third of a training step.
    passes = evaluated / config.eval_every / 3
    total = steps * _step_bytes(config, dataset, sizes) + passes * sizes.activations
    return total / _BYTES_PER_COST


def _step_bytes(config: RunConfig, dataset: Dataset, sizes: _Sizes) -> float:
    """Return the memory that one step of a run's cohort needs on the device, about."""
    samples = _batch(config, dataset) * sizes.activations
    return config.cohort * (_COPIES_OF_A_MODEL * sizes.weight + samples)


def _batch(config: RunConfig, dataset: Dataset) -> float:
    size = _client_size(config, dataset)
    return min(config.batch_size or size, size)


def _client_size(config: RunConfig, dataset: Dataset) -> float:
    return config.samples_per_client or len(dataset.y_train) / _clients(config, dataset)


def _state_bytes(config: RunConfig, weight: int, clients: int) -> float:
    """Return the size of one run's checkpoint, about."""
    selector = config.make_selector()
    models = 1
    if Need.UPDATE in selector.needs and not selector.forgets_updates:
        models += clients
    if Need.PROFILE in selector.needs and config.profile != "fc1":
        models += clients
    return models * weight


def _activation_bytes(model: nn.Module, dataset: Dataset) -> tuple[int, int]:
    """Return what one sample's pass through the model takes, with and without a way back, about."""
    x, _ = some_samples(dataset)
    sizes: list[int] = []

    def measure(_module: nn.Module, _inputs: Any, outputs: Any) -> None:
        sizes.append(_numbers(outputs) // len(x))

    # A copy, since even a pass without gradients moves the running statistics of a BatchNorm.
    own = copy.deepcopy(model).eval()
    for module in own.modules():
        if not (list(module.children()) or isinstance(module, torch.jit.ScriptModule)):
            module.register_forward_hook(measure)
    with torch.no_grad():
        outputs = own(x)
    # Of a model without layers of PyTorch's, what goes in and out is all that can be seen.
    sizes = sizes or [(x.numel() + _numbers(outputs)) // len(x)]
    # Without a way back, what a few layers put out is there at once, however deep the model is.
    passing = min(sum(sizes), _LAYERS_AT_ONCE * max(sizes))
    unit = _FLOAT_BYTES * _COPIES_OF_ACTIVATIONS
    return unit * sum(sizes), unit * passing


def _numbers(result: Any) -> int:
    """Count the numbers in whatever a module returns."""
    if isinstance(result, Tensor):
        return result.numel()
    parts = result.values() if isinstance(result, dict) else result
    return sum(map(_numbers, parts)) if isinstance(result, dict | tuple | list) else 0


def _at_once(config: RunConfig, materials: Materials, device: torch.device) -> int | None:
    """Return how many clients of a run a GPU trains at a time; None: all, as it is on a CPU."""
    if device.type == "cpu":
        return None
    dataset, model = materials.dataset(config), materials.model(config)
    x, y = some_samples(dataset)
    nobody = torch.zeros(0, dtype=torch.int64, device=device)
    task, traits, work = materials.task(config), read_traits(model, x), local_work(config, 1)
    problem = LocalProblem(model, {}, NO_JOBS, (x, y), nobody, work, task, traits)
    with warnings.catch_warnings():
        # The group itself will say so.
        warnings.simplefilter("ignore", SlowPathWarning)
        return choose_trainer(problem, config.precision).at_once


def _clients(config: RunConfig, dataset: Dataset) -> int:
    return len(dataset.client_names) if config.clients is None else config.clients


def _memory(device: torch.device) -> float:
    """Return the memory of a device, whoever uses some of it just now."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
