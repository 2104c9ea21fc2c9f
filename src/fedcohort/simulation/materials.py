"""What runs start from, each built once: data sets, federations, first models, selectors."""

import functools
from collections.abc import Mapping
from typing import Any

from torch import nn

from fedcohort.errors import CohortSizeError
from fedcohort.federation import Dataset, Federation, build_federation, load_dataset
from fedcohort.randomness import derived_seed
from fedcohort.selection import Selector
from fedcohort.simulation.config import SETTINGS, RunConfig
from fedcohort.training.initialisation import initialise
from fedcohort.training.models import Factory, build_model, find_factory
from fedcohort.training.task import Task, make_task

# Of the federations and models that a process has built, so many stay: those of a group share few.
_KEPT = 256


class Materials:
    """Builds what configurations name, and keeps it while it may be asked for again.

    Parameters
    ----------
    datasets : dict of Dataset, optional
        Data sets that are given as objects, by the name that configurations call them; others are
        loaded by name.
    models : dict of callable, optional
        Factories of models that are given as objects, likewise.
    """

    def __init__(
        self,
        datasets: Mapping[str, Dataset] | None = None,
        models: Mapping[str, Factory] | None = None,
    ) -> None:
        self._datasets, self._factories = dict(datasets or {}), dict(models or {})
        self._federations = functools.lru_cache(_KEPT)(self._build_federation)
        self._models = functools.lru_cache(_KEPT)(self._build_model)

    def __reduce__(self) -> tuple[type["Materials"], tuple[Any, ...]]:
        """Travel to other processes with what cannot be built there."""
        return Materials, (self._datasets, self._factories)

    def dataset(self, config: RunConfig) -> Dataset:
        """Return what a run trains on."""
        if config.dataset not in self._datasets:
            self._datasets[config.dataset] = load_dataset(config.dataset)
        return self._datasets[config.dataset]

    def federation(self, config: RunConfig) -> Federation:
        """Return who holds what in a run; not to be changed."""
        federation = self._federations(_Alike(config))
        if config.cohort > len(federation):
            raise CohortSizeError(
                f"A cohort of {config.cohort} cannot be chosen from the {len(federation)} clients"
                f" of {federation.dataset.name}: lower the cohort."
            )
        return federation

    def model(self, config: RunConfig) -> nn.Module:
        """Return a run's model with its first weights, on the host; not to be changed."""
        return self._models(_Alike(config))

    def factory(self, config: RunConfig) -> Factory:
        """Return what builds a run's model."""
        return find_factory(self._factories.get(config.model, config.model), self.dataset(config))

    def task(self, config: RunConfig) -> Task:
        """Return what a run learns."""
        dataset = self.dataset(config)
        return make_task(dataset.task, dataset.classes, config.loss)

    def selector(self, config: RunConfig) -> Selector:
        """Make a run's selector: the one thing here that belongs to the run alone."""
        return config.make_selector()

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
        model = build_model(
            self._factories.get(config.model, config.model),
            self.dataset(config),
            self.task(config),
            derived_seed(config.seed, "model"),
        )
        return initialise(model, config.init, derived_seed(config.seed, "initialisation"))


class _Alike:
    """A configuration that equals every other with the same federation, data and first model."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        # What names stand for is known to whoever builds: their content would tell nothing more.
        self._values = tuple(getattr(config, name) for name in _SHAPING)

    def __hash__(self) -> int:
        return hash(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Alike) and other._values == self._values


_SHAPING = [name for name, s in SETTINGS.items() if s.federation is True and name != "content"]
