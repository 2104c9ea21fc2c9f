"""What a run starts from: data on the device, the federation, the first model, the profiles."""

import copy
import dataclasses
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcohort.errors import CohortSizeError
from fedcohort.federation import Dataset, Federation, build_federation
from fedcohort.profiles import (
    fc1_profiles,
    gradient_profiles,
    private_profiles,
    representative_gradient_profiles,
)
from fedcohort.randomness import derived_seed, generator, hashed_keys
from fedcohort.simulation.config import RunConfig
from fedcohort.training.chain import until_first_linear
from fedcohort.training.initialisation import initialise
from fedcohort.training.local import Parameters, Trainer
from fedcohort.training.models import build_model
from fedcohort.training.plan import Jobs, LocalWork
from fedcohort.training.workers import Workers

Data = tuple[Tensor, Tensor]

# Profiled as one piece of work on a CPU.
_CLIENTS_AT_ONCE = 8


@dataclasses.dataclass(frozen=True)
class DeviceData:
    """A data set on the device, as a model is given it.

    Attributes
    ----------
    train, test : (float32 [N, ...], int64 [N])
        Inputs and labels; the test part may be empty.
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


def initial_model(config: RunConfig, dataset: Dataset) -> nn.Module:
    """Build the first global model, a function of the run's seed."""
    model = build_model(
        config.model,
        dataset.x_train.shape[1:],
        dataset.classes,
        derived_seed(config.seed, "model"),
    )
    return initialise(model, config.init, derived_seed(config.seed, "initialisation"))


def federation_of(config: RunConfig, dataset: Dataset) -> Federation:
    """Divide the data set over clients as `config` says."""
    federation = build_federation(
        dataset,
        skew=config.skew,
        clients=config.clients,
        seed=config.seed,
        samples_per_client=config.samples_per_client,
        size_spread=config.size_spread,
        reuse=config.reuse,
    )
    if config.cohort > len(federation):
        raise CohortSizeError(
            f"A cohort of {config.cohort} cannot be chosen from the {len(federation)} clients of"
            f" {dataset.name}: lower the cohort."
        )
    if (promise := config.promise) is not None:
        promise.noise(int(federation.sizes.max()))
    return federation


def client_count(config: RunConfig, dataset: Dataset) -> int:
    """Return how many clients a run has: the data set's own, or what `config` says."""
    return len(dataset.client_names) if config.clients is None else config.clients


def order_keys(seed: int, round_: int, clients: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the keys int64 [m] that decide in which order clients visit their samples."""
    return hashed_keys(seed, "data order", round_, clients)


def _profiles_on_cpu(
    model: nn.Module, x: Tensor, samples: Tensor, sizes: Tensor, layer: str | None
) -> Tensor:
    """Return FC-1 profiles, some clients on each core; they do not depend on the cores' number."""
    counts = torch.split(sizes, _CLIENTS_AT_ONCE)
    parts = zip(torch.split(samples, [int(count.sum()) for count in counts]), counts, strict=True)

    # Convolutions of a CPU are fastest so, and on few samples, whose values stay in the cache.
    fast = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if layer is None:
        fast = until_first_linear(fast, x.shape[1:])

    def profile(part: tuple[Tensor, Tensor]) -> Tensor:
        # A copy a piece, since what is read from a module is kept with the module.
        return fc1_profiles(copy.deepcopy(fast), x, *part, layer=layer, samples_at_once=200)

    return torch.cat(Workers(torch.get_num_threads(), 1).map(profile, parts))


def client_profiles(
    config: RunConfig,
    model: nn.Module,
    federation: Federation,
    data: Data,
    trainer: Trainer,
    work: LocalWork,
) -> NDArray[np.float32]:
    """Return what each client sends once, float32 [C, Q]."""
    x, y = data
    samples = torch.from_numpy(federation.partition.indices).to(x.device)
    sizes = torch.from_numpy(federation.sizes).to(x.device)

    def fc1() -> Tensor:
        layer = config.profile_layer
        if x.device.type != "cpu":
            return fc1_profiles(model, x, samples, sizes, layer=layer)
        return _profiles_on_cpu(model, x, samples, sizes, layer)

    def representative() -> Tensor:
        parameters: Parameters = {n: p.detach() for n, p in model.named_parameters()}
        clients = np.arange(len(federation))
        jobs = Jobs(
            model=torch.zeros(len(clients), dtype=torch.int64),
            start=torch.from_numpy(federation.partition.offsets[:-1]),
            size=torch.from_numpy(federation.sizes),
            key=torch.from_numpy(order_keys(config.seed, 0, clients)),
            passes=torch.full((len(clients),), config.epochs),
        )
        stacked = {name: values[None].clone() for name, values in parameters.items()}
        trained = trainer(model, stacked, jobs, data, samples, work)
        return representative_gradient_profiles(
            {name: values[0] for name, values in stacked.items()}, trained.parameters
        )

    methods: dict[str, Callable[[], Tensor]] = {
        "fc1": fc1,
        "gradient": lambda: gradient_profiles(model, x, y, samples, sizes),
        "representative-gradient": representative,
    }
    if (promise := config.promise) is not None:

        def noise(client: int, count: int) -> NDArray[np.float64]:
            return generator(config.seed, "profile noise", client).standard_normal(count)

        return private_profiles(
            model, x, samples, sizes, promise, noise=noise, layer=config.profile_layer
        )
    return methods[config.profile]().cpu().numpy()
