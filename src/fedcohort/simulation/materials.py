"""What runs start from, each built once: data sets, federations, first models."""

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import nn

from fedcohort.errors import CohortSizeError, InvalidModelError, InvalidParameterError
from fedcohort.federation import Dataset, Federation, Progress, build_federation, load_dataset
from fedcohort.federation.datasets import check_task
from fedcohort.randomness import derived_seed
from fedcohort.selection import Need, Selector
from fedcohort.selection.output_bias import OutputBiasSelector
from fedcohort.selection.registry import register_class
from fedcohort.simulation.config import SETTINGS, RunConfig
from fedcohort.training.augmentation import read_augmentation
from fedcohort.training.initialisation import initialise
from fedcohort.training.models import Factory, build_model, check_built, find_factory
from fedcohort.training.modules import normalisation_names, trained_names
from fedcohort.training.task import Losses, Task, find_loss, make_task

# Of the federations and models that a process has built, so many stay: those of a group share few.
_KEPT = 256


class Materials:
    """Builds what configurations name, and keeps it while it may be asked for again.

    Parameters
    ----------
    datasets : dict of Dataset, optional
        Data sets that are given as objects, by the name that configurations call them; others are
        loaded by name.
    models, losses : dict of callable, optional
        Factories of models, and losses, that are given as objects, likewise.
    selectors : collection of class
        Selectors that configurations name and that other processes would not know by that name.
    progress : callable, optional
        Told how far the download of a data set is, as in `load_dataset`.
    """

    def __init__(
        self,
        datasets: Mapping[str, Dataset] | None = None,
        models: Mapping[str, Factory] | None = None,
        losses: Mapping[str, Losses] | None = None,
        selectors: Collection[type[Selector]] = (),
        progress: Progress | None = None,
    ) -> None:
        self._datasets, self._factories = dict(datasets or {}), dict(models or {})
        self._losses, self._selectors = dict(losses or {}), tuple(selectors)
        self._progress = progress
        for kind in selectors:
            register_class(kind)
        self._federations = functools.lru_cache(_KEPT)(self._build_federation)
        self._models = functools.lru_cache(_KEPT)(self._build_model)
        self._checks = functools.lru_cache(_KEPT)(self._check_model)

    def __reduce__(self) -> tuple[type["Materials"], tuple[Any, ...]]:
        """Travel to other processes with what cannot be built there."""
        return Materials, (self._datasets, self._factories, self._losses, self._selectors)

    def dataset(self, config: RunConfig) -> Dataset:
        """Return what a run trains on."""
        task = None if config.task == "auto" else config.task
        if config.dataset in self._datasets:
            return check_task(self._datasets[config.dataset], task)
        name = config.dataset if task is None else f"{config.dataset} for {task}"
        if name not in self._datasets:
            self._datasets[name] = load_dataset(config.dataset, task=task, progress=self._progress)
        return self._datasets[name]

    def federation(self, config: RunConfig) -> Federation:
        """Return who holds what in a run; not to be changed."""
        federation = self._federations(_Alike(config, _DIVIDED))
        if config.cohort > len(federation):
            raise CohortSizeError(
                f"A cohort of {config.cohort} cannot be chosen from the {len(federation)} clients"
                f" of {federation.dataset.name}: lower the cohort."
            )
        return federation

    def model(self, config: RunConfig) -> nn.Module:
        """Return a run's model with its first weights, on the host; not to be changed."""
        return self._models(_Alike(config, _BUILT))

    def check_model(self, config: RunConfig) -> str:
        """Refuse a run's model, before anything is written; it is looked at once for all seeds.

        What comes back says why it does not train on a batch of one sample; nothing if it does.
        """
        return self._checks(_Alike(config, _CHECKED))

    def selector(self, config: RunConfig) -> Selector:
        """Return a run's selector, before it has met a client; it fits the model."""
        selector = config.make_selector()
        rule = selector.innermost
        if isinstance(rule, OutputBiasSelector) and Need.UPDATE in rule.needs:
            self._fit_outputs(rule, config)
        return selector

    def _fit_outputs(self, rule: OutputBiasSelector, config: RunConfig) -> None:
        """Say how long the output layer's bias is, with which an update ends."""
        model, outputs = self.model(config), self.task(config).outputs
        last = trained_names(model)[-1]
        shape = list(model.get_parameter(last).shape)
        if shape != [outputs]:
            raise InvalidModelError(
                f"Selector {config.selector!r} reads the output layer's bias, which must be the"
                f" last parameter that is trained: in model {config.model!r} that is {last!r} of"
                f" shape {shape}, and there are {outputs} outputs. Take another selector, or let"
                " the output layer come last, with a bias."
            )
        if rule.outputs not in (None, outputs):
            raise InvalidParameterError(
                f"outputs of selector {config.selector!r} is {rule.outputs}, and model"
                f" {config.model!r} has {outputs}: leave it out."
            )
        rule.outputs = outputs

    def _origin(self, config: RunConfig) -> tuple[str | Factory, Dataset, Task, int]:
        """Return what a run's model is built from."""
        return (
            self._factories.get(config.model, config.model),
            self.dataset(config),
            self.task(config),
            derived_seed(config.seed, "model"),
        )

    def _check_augmentation(self, config: RunConfig) -> None:
        """Refuse crops and flips of what is no image, and crops that may leave nothing of it."""
        augmentation, dataset = read_augmentation(config.augment), self.dataset(config)
        if augmentation is None:
            return
        shape = dataset.x_train.shape[1:]
        if len(shape) != 3:
            raise InvalidParameterError(
                f"augment of the run is {config.augment}, which is for images, and {dataset.name}"
                " has none: leave it out."
            )
        if augmentation.crop >= min(shape[1:]):
            raise InvalidParameterError(
                f"augment of the run is {config.augment}, and the images of {dataset.name} are of"
                f" {shape[1]} × {shape[2]} pixels: crop by less than {min(shape[1:])}."
            )

    def factory(self, config: RunConfig) -> Factory:
        """Return what builds a run's model."""
        return find_factory(self._factories.get(config.model, config.model), self.dataset(config))

    def task(self, config: RunConfig) -> Task:
        """Return what a run learns."""
        dataset = self.dataset(config)
        return make_task(dataset.task, dataset.classes, self.loss(config), config.score)

    def loss(self, config: RunConfig) -> str | Losses:
        """Return what a run's training makes smaller: a name of fedcohort's own, or a function."""
        return find_loss(self._losses.get(config.loss, config.loss))

    def _build_federation(self, alike: "_Alike") -> Federation:
        config = alike.config
        federation = build_federation(
            self.dataset(config),
            skew=config.skew,
            clients=config.clients,
            seed=config.seed,
            samples_per_client=config.samples_per_client,
            size_spread=config.size_spread,
            reuse=config.reuse,
        )
        if (promise := config.promise) is not None:
            promise.check(federation.sizes)
        return federation

    def _build_model(self, alike: "_Alike") -> nn.Module:
        config = alike.config
        model = build_model(*self._origin(config))
        if config.normalisation == "local" and not normalisation_names(model):
            raise InvalidParameterError(
                f"normalisation of the run is local, and the model {config.model!r} has no"
                " BatchNorm layer: leave it out, or take a model that has, such as"
                " resnet8:norm=batch."
            )
        return initialise(model, config.init, derived_seed(config.seed, "initialisation"))

    def _check_model(self, alike: "_Alike") -> str:
        config = alike.config
        self._check_augmentation(config)
        again = self._build_model(alike)
        other = self.model(dataclasses.replace(config, seed=config.seed ^ 1))
        named, dataset, task, _ = self._origin(config)
        return check_built(named, (self.model(config), again, other), dataset, task)


class _Alike:
    """A configuration that equals every other with the same values of some settings."""

    def __init__(self, config: RunConfig, names: Sequence[str]) -> None:
        self.config = config
        self._values = tuple(getattr(config, name) for name in names)

    def __hash__(self) -> int:
        return hash(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Alike) and other._values == self._values


# What names stand for is known to whoever builds: their content would tell nothing more.
_DIVIDED = [name for name, s in SETTINGS.items() if s.federation is True and name != "content"]
_MADE = ("dataset", "task", "model", "init", "normalisation")
_BUILT, _CHECKED = (*_MADE, "seed"), (*_MADE, "loss", "score", "augment")
