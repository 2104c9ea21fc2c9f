"""The models that clients train: those that come with us by name, and yours."""

import contextlib
import copy
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from fedcohort.errors import InvalidModelError, UnknownNameError
from fedcohort.federation import Dataset
from fedcohort.references import load_reference
from fedcohort.specs import parse_spec
from fedcohort.training.architectures.cnn import CifarCNN, PaperCNN, SmallCNN
from fedcohort.training.architectures.lstm import CharLSTM
from fedcohort.training.architectures.mlp import MLP
from fedcohort.training.architectures.resnet import resnet8, resnet18
from fedcohort.training.model_checks import check_model, check_parts, in_words
from fedcohort.training.task import Task
from fedcohort.training.workers import one_thread_per_operation

Factory = Callable[..., nn.Module]
"""Takes (input_shape, classes), and ``vocabulary=`` if it has such a parameter; returns a model."""

MODELS: dict[str, Factory] = {
    "cnn": PaperCNN,
    "cnn-small": SmallCNN,
    "cnn-cifar": CifarCNN,
    "resnet8": resnet8,
    "resnet18": resnet18,
    "char-lstm": CharLSTM,
    "mlp": MLP,
}

# Kinds of inputs that each of them reads.
_READS = dict.fromkeys(MODELS, ("image",)) | {
    "char-lstm": ("tokens",),
    "mlp": ("image", "table"),
}
_IN_WORDS = {"image": "images", "table": "tables", "tokens": "tokens"}

# PyTorch's generator is the process's: one thread at a time may lend it, or watch it.
_GLOBAL_GENERATOR = threading.RLock()


# First weights may be computed, as orthogonal ones are, and sums depend on the threads.
@one_thread_per_operation()
def build_model(model: str | Factory, dataset: Dataset, task: Task, seed: int) -> nn.Module:
    """Build a model whose first weights are a function of `seed` alone.

    Parameters
    ----------
    model : str or callable
        ``auto`` (by the inputs), one of `MODELS`, or a reference to your own (``module:factory``,
        ``FILE.py:factory``), with or without parameters (``mlp:hidden=128``); or the factory
        itself.
    dataset : Dataset
        What it will be trained on.
    task : Task
        What it will learn.
    seed : int
        Seed of the initial weights.

    Raises
    ------
    InvalidModelError
        One sentence about why it cannot be built, or has parts that cannot be trained.
    """
    factory = find_factory(model, dataset)
    parameters = _parameters(model, factory, dataset)
    # Layers draw their first weights from PyTorch's global generator: lend them one of our own.
    with _GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(seed)
        try:
            built = factory(dataset.x_train.shape[1:], task.outputs, **parameters)
        except Exception as error:
            raise InvalidModelError(
                f"Model {_name_of(model)!r} cannot be built for inputs of shape"
                f" {list(dataset.x_train.shape[1:])}: {in_words(error)}."
            ) from error
    with _refusing(model):
        check_parts(built)
    try:
        # A factory may give the same one again.
        return copy.deepcopy(built)
    except Exception as error:
        raise InvalidModelError(
            f"Model {_name_of(model)!r} cannot be copied, and each worker has a copy of it"
            f" ({in_words(error)}): keep no locks and no computed tensors in it, and take"
            " weight_norm from torch.nn.utils.parametrizations."
        ) from error


def check_built(
    model: str | Factory,
    built: tuple[nn.Module, nn.Module, nn.Module],
    dataset: Dataset,
    task: Task,
) -> str:
    """Refuse a model of which three were built, as `check_model` does, by its name."""
    with _GLOBAL_GENERATOR, _refusing(model):
        return check_model(*built, dataset, task)


def _name_of(model: str | Factory) -> str:
    return model if isinstance(model, str) else getattr(model, "__qualname__", repr(model))


@contextlib.contextmanager
def _refusing(model: str | Factory) -> Iterator[None]:
    """Say of which model it is that something is wrong."""
    try:
        yield
    except InvalidModelError as error:
        raise InvalidModelError(f"Model {_name_of(model)!r} cannot be trained: {error}.") from error


def find_factory(model: str | Factory, dataset: Dataset) -> Factory:
    """Return what builds a model; parameters as in `build_model`."""
    if not isinstance(model, str):
        return model
    name, _ = _spec(model, dataset)
    if name in MODELS:
        if dataset.inputs not in _READS[name]:
            read = " and ".join(_IN_WORDS[kind] for kind in _READS[name])
            raise InvalidModelError(
                f"Model {model!r} reads {read}, and {dataset.name} has"
                f" {_IN_WORDS[dataset.inputs]}: choose another model, or auto."
            )
        return MODELS[name]
    if ":" not in name:
        raise UnknownNameError("model", name, [*MODELS, "auto", "module:factory"])
    factory = load_reference(name, "model", InvalidModelError)
    if not callable(factory):
        raise InvalidModelError(f"Model {model!r} is not callable: give a factory or a class.")
    return factory  # type: ignore[no-any-return]


def _spec(model: str, dataset: Dataset) -> tuple[str, dict[str, Any]]:
    return parse_spec(_by_inputs(dataset) if model == "auto" else model)


def _parameters(model: str | Factory, factory: Factory, dataset: Dataset) -> dict[str, Any]:
    """Return what a factory is given besides the shape of an input and the outputs."""
    parameters = _spec(model, dataset)[1] if isinstance(model, str) else {}
    if "vocabulary" not in parameters and _has_parameter(factory, "vocabulary"):
        if not dataset.vocabulary:
            raise InvalidModelError(
                f"Model {model!r} reads tokens, and {dataset.name} has none: choose another model."
            )
        parameters["vocabulary"] = dataset.vocabulary
    return parameters


def _has_parameter(factory: Factory, name: str) -> bool:
    try:
        return name in inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False


def _by_inputs(dataset: Dataset) -> str:
    """Return the model that suits the inputs."""
    if dataset.inputs == "tokens":
        return "char-lstm"
    if dataset.inputs == "table" or min(dataset.x_train.shape[2:]) < 6:
        return "mlp"
    _, channels, *sides = dataset.x_train.shape
    if channels > 1 and min(sides) >= 16:
        return "cnn-cifar"
    return "cnn" if min(sides) >= 16 else "cnn-small"
