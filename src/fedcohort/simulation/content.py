"""What the names in a configuration stand for, where the name alone does not fix it.

A user's own data, an availability trace, and the code of a user's own model, loss or selector with
what it uses can change while their names stay. Their fingerprints enter the configuration, and with
it the run's key. Built-in data, models and selectors add nothing: their keys are those of the
names, and of the revisions of a selector whose rule has changed, and of averaging.
"""

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

from fedcohort.federation import DATASETS, Dataset
from fedcohort.selection import selector_class
from fedcohort.selection.registry import is_users
from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.fingerprint import common_fingerprint, digest, fingerprint
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.study import Study
from fedcohort.simulation.system import parse_availability
from fedcohort.specs import parse_spec
from fedcohort.training.models import MODELS

# Hashing a large data set takes seconds: once for each object.
_data_digests: weakref.WeakKeyDictionary[Dataset, str] = weakref.WeakKeyDictionary()


def with_content(study: Study, materials: Materials) -> Study:
    """Return a study whose runs also say what the names in them stand for."""
    said: dict[str, Callable[[RunConfig], Any]] = {
        "content": once(
            lambda config: _shaping_content(config, materials), "dataset", "task", "model", "loss"
        ),
        "selection_content": once(_choosing_content, "availability", "selector"),
    }
    revisions = once(RunConfig.revisions, "selector", "dropout", "over_selection", "deadline")

    def complete(config: RunConfig) -> RunConfig:
        values = {name: value(config) for name, value in said.items()} | revisions(config)
        new = {name: value for name, value in values.items() if value != getattr(config, name)}
        return dataclasses.replace(config, **new) if new else config

    parts = (
        dataclasses.replace(part, configs=tuple(map(complete, part.configs)))
        for part in study.parts
    )
    return dataclasses.replace(study, parts=tuple(parts))


def once(of: Callable[[RunConfig], Any], *names: str) -> Callable[[RunConfig], Any]:
    """Return a function that asks `of` once for all configurations that are alike in `names`."""
    known: dict[tuple[object, ...], Any] = {}

    def value(config: RunConfig) -> Any:
        alike = tuple(getattr(config, name) for name in names)
        if alike not in known:
            known[alike] = of(config)
        return known[alike]

    return value


def _shaping_content(config: RunConfig, materials: Materials) -> str:
    """Digest the data, the model and the loss, where their names do not fix them."""
    shaping = []
    if config.dataset not in DATASETS:
        shaping.append(_of_data(materials.dataset(config)))
    if parse_spec(config.model)[0] not in ("auto", *MODELS):
        shaping += _of_model(config, materials)
    if callable(loss := materials.loss(config)):
        shaping.append(fingerprint(loss, f"the loss {config.loss}"))
    return _short(shaping)


def _choosing_content(config: RunConfig) -> str:
    """Digest the availability trace and the code of a selector that is not fedcohort's own."""
    choosing = []
    if (trace := parse_availability(config.availability).trace) is not None:
        choosing.append(fingerprint(trace, "the trace"))
    rule = selector_class(config.selector)
    if is_users(rule):
        choosing.append(fingerprint(rule, f"the selector {config.selector}"))
    return _short(choosing)


def _of_data(dataset: Dataset) -> str:
    if dataset not in _data_digests:
        fields = (field.name for field in dataclasses.fields(dataset) if field.name != "name")
        content = {name: getattr(dataset, name) for name in fields}
        _data_digests[dataset] = fingerprint(content, f"the data set {dataset.name}")
    return _data_digests[dataset]


def _of_model(config: RunConfig, materials: Materials) -> list[str]:
    """Digest what builds a model, and of the model what is not the seed's doing."""
    what = f"the model {config.model}"
    # The same two seeds for all runs, and weights that no initialisation has written over.
    alike = (dataclasses.replace(config, seed=seed, init="default") for seed in (0, 1))
    models = map(materials.model, alike)
    return [fingerprint(materials.factory(config), what), common_fingerprint(models, what)]


def _short(parts: list[str]) -> str:
    """Return 16 hexadecimal digits for several digests, or nothing for none."""
    return digest(parts)[:16] if parts else ""
