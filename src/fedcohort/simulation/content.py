"""What the names in a configuration stand for, where the name alone does not fix it.

The arrays of a user's own data, an availability trace, and the code of a user's own model or
selector can change while their names stay. Their digests enter the configuration, and with it the
run's key. Built-in data, models and selectors add nothing: their keys are those of the names, and
of the revision of a selector whose rule has changed.
"""

import dataclasses
import hashlib
import inspect
import sys
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedcohort.federation import DATASETS, Dataset
from fedcohort.selection import selector_class
from fedcohort.simulation.config import RunConfig
from fedcohort.simulation.materials import Materials
from fedcohort.simulation.study import Study
from fedcohort.simulation.system import parse_availability
from fedcohort.specs import parse_spec
from fedcohort.training.models import MODELS

# Fixed by the versions that a run's facts name.
_KNOWN = {"fedcohort", "torch", *sys.stdlib_module_names}
# Hashing a large data set takes seconds: once for each object.
_data_digests: weakref.WeakKeyDictionary[Dataset, str] = weakref.WeakKeyDictionary()


def with_content(study: Study, materials: Materials) -> Study:
    """Return a study whose runs also say what the names in them stand for."""
    known: dict[tuple[str, ...], dict[str, Any]] = {}

    def complete(config: RunConfig) -> RunConfig:
        names = config.dataset, config.model, config.availability, config.selector
        if names not in known:
            known[names] = {
                "content": _shaping_content(config, materials),
                "selection_content": _choosing_content(config),
                "selector_revision": config.make_selector().revision,
            }
        said = {name: new for name, new in known[names].items() if new != getattr(config, name)}
        return dataclasses.replace(config, **said) if said else config

    parts = (
        dataclasses.replace(part, configs=tuple(map(complete, part.configs)))
        for part in study.parts
    )
    return dataclasses.replace(study, parts=tuple(parts))


def _shaping_content(config: RunConfig, materials: Materials) -> str:
    """Digest the data and the model, where their names do not fix them."""
    shaping = []
    if config.dataset not in DATASETS:
        shaping.append(_of_data(materials.dataset(config)))
    if parse_spec(config.model)[0] not in ("auto", *MODELS):
        shaping.append(_of_model(materials.factory(config), materials.model(config)))
    return _digest(shaping)


def _choosing_content(config: RunConfig) -> str:
    """Digest the availability trace and the code of a selector that is not fedcohort's own."""
    choosing = []
    if (trace := parse_availability(config.availability).trace) is not None:
        choosing.append(_of_arrays(trace))
    choosing += _sources(selector_class(config.selector).__mro__)
    return _digest(choosing)


def _of_data(dataset: Dataset) -> str:
    if dataset not in _data_digests:
        arrays = [dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test]
        if dataset.client is not None:
            arrays.append(dataset.client)
        said = repr((dataset.classes, dataset.scale, dataset.class_names, dataset.client_names))
        _data_digests[dataset] = _digest([_of_arrays(*arrays), said])
    return _data_digests[dataset]


def _of_arrays(*arrays: NDArray[np.generic]) -> str:
    parts: list[str] = []
    for array in arrays:
        content = hashlib.sha256(np.ascontiguousarray(array).data)
        parts += [str(array.dtype), str(array.shape), content.hexdigest()]
    return _digest(parts)


def _of_model(factory: object, model: nn.Module) -> str:
    """Return a digest of a model's layers, shapes and code; its first weights are the seed's."""
    values = [*model.named_parameters(), *model.named_buffers()]
    shapes = [f"{key} {list(value.shape)} {value.dtype}" for key, value in values]
    owners = [c for part in model.modules() for c in type(part).__mro__]
    return _digest([repr(model), *shapes, *_sources([*owners, factory])])


def _sources(owners: Iterable[object]) -> list[str]:
    """Return the code of the modules that define these classes and functions, if not our own."""
    found = {}
    for owner in owners:
        module = owner.__name__ if inspect.ismodule(owner) else getattr(owner, "__module__", "")
        if module.partition(".")[0] in _KNOWN:
            continue
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is not None and file.endswith(".py"):
            found[module] = Path(file).read_text("utf-8")
        else:
            # What a notebook or a prompt defined stands in no file.
            name = f"{module}.{getattr(owner, '__qualname__', type(owner).__qualname__)}"
            found[name] = _source(owner) or name
    return [found[name] for name in sorted(found)]


def _source(owner: object) -> str:
    try:
        return inspect.getsource(owner)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return ""


def _digest(parts: Iterable[str]) -> str:
    """Return 16 hexadecimal digits for several texts, or nothing for none."""
    whole = hashlib.sha256()
    empty = True
    for part in parts:
        encoded = part.encode()
        whole.update(f"{len(encoded)}:".encode() + encoded)
        empty = False
    return "" if empty else whole.hexdigest()[:16]
