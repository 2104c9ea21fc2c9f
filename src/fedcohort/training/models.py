"""The models that clients train: those that come with us by name, and yours."""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedcohort.errors import InvalidModelError, UnknownNameError
from fedcohort.federation import Dataset
from fedcohort.references import load_reference
from fedcohort.specs import parse_spec
from fedcohort.training.architectures.cnn import CifarCNN, PaperCNN, SmallCNN
from fedcohort.training.architectures.lstm import CharLSTM
from fedcohort.training.architectures.mlp import MLP
from fedcohort.training.architectures.resnet import resnet8, resnet18
from fedcohort.training.inputs import prepare_inputs, prepare_targets
from fedcohort.training.modules import output_of, read_traits
from fedcohort.training.task import Task

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

_CHECKED_SAMPLES = 4


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
        One sentence about why it cannot be built or trained.
    """
    name = model if isinstance(model, str) else getattr(model, "__qualname__", repr(model))
    factory = find_factory(model, dataset)
    parameters = _parameters(model, factory, dataset)
    # Layers draw their first weights from PyTorch's global generator: lend them one of our own.
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(seed)
        try:
            built = factory(dataset.x_train.shape[1:], task.outputs, **parameters)
        except Exception as error:
            raise InvalidModelError(
                f"Model {name!r} cannot be built for inputs of shape"
                f" {list(dataset.x_train.shape[1:])}: {_sentence(error)}."
            ) from error
    try:
        _check_model(built, dataset, task)
    except InvalidModelError as error:
        raise InvalidModelError(f"Model {name!r} cannot be trained: {error}.") from error
    return built


def find_factory(model: str | Factory, dataset: Dataset) -> Factory:
    """Return what builds a model; parameters as in `build_model`."""
    if not isinstance(model, str):
        return model
    name, _ = _spec(model, dataset)
    if name in MODELS:
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


def _check_model(model: object, dataset: Dataset, task: Task) -> None:
    """Refuse what cannot be trained right, before anything is trained."""
    if not isinstance(model, nn.Module):
        raise InvalidModelError(f"its factory made a {type(model).__name__}, not an nn.Module")
    _check_parts(model)
    # Twice, so that a batch of one sample's shape is not what decides.
    some = np.arange(_CHECKED_SAMPLES) % len(dataset.x_train)
    x = prepare_inputs(dataset.x_train[some], dataset, standard=True)
    y = prepare_targets(dataset.y_train[some])
    own = copy.deepcopy(model)
    for training in (True, False):
        own.train(training)
        try:
            if training:
                read_traits(own, x)
            outputs = output_of(own(x))
        except InvalidModelError:
            raise
        except Exception as error:
            raise InvalidModelError(
                f"its forward pass fails on inputs of shape {list(x.shape)} and type"
                f" {str(x.dtype).removeprefix('torch.')} ({_sentence(error)})"
            ) from error
        _check_outputs(outputs, y, task)
    _check_loss(own, output_of(own(x)), y, task)


def _check_parts(model: nn.Module) -> None:
    parameters = dict(model.named_parameters())
    if not any(p.requires_grad for p in parameters.values()):
        raise InvalidModelError("it has no parameter that is not frozen")
    for name, p in parameters.items():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise InvalidModelError(f"its parameter {name!r} has no shape yet: use no lazy layers")
        if p.dtype != torch.float32 or p.device.type != "cpu":
            raise InvalidModelError(
                f"its parameter {name!r} is {str(p.dtype).removeprefix('torch.')} on {p.device}:"
                " build it in float32 on the CPU"
            )
    for name, part in model.named_modules():
        if isinstance(part, nn.RNNBase) and part.dropout:
            raise InvalidModelError(
                f"its layer {name!r} has dropout inside, which cannot be repeated from a key: put"
                " an nn.Dropout between layers instead"
            )
        if isinstance(part, nn.modules.batchnorm._NormBase) and part.momentum is None:
            raise InvalidModelError(
                f"its layer {name!r} averages over all batches (momentum=None), of which clients"
                " have no common count: give it a momentum"
            )


def _check_outputs(outputs: Tensor, y: Tensor, task: Task) -> None:
    """Refuse outputs of another shape than the task's."""
    if task.name in ("classification", "next-token"):
        wanted = [(*y.shape, task.outputs)]
    elif task.name == "binary":
        wanted = [(len(y), 1), (len(y),)]
    else:
        wanted = [tuple(y.shape), (len(y), task.outputs)]
    if tuple(outputs.shape) not in wanted:
        raise InvalidModelError(
            f"its outputs for {len(y)} samples have shape {list(outputs.shape)}, and the task"
            f" {task.name} needs {list(wanted[0])}"
        )


def _check_loss(model: nn.Module, outputs: Tensor, y: Tensor, task: Task) -> None:
    """Refuse a loss that cannot be descended along."""
    try:
        losses = task.losses(outputs, y)
        if losses.shape != (len(y),):
            raise InvalidModelError(
                f"the loss of {len(y)} samples has shape {list(losses.shape)}: return one loss per"
                " sample, without a mean"
            )
        trained = [p for p in model.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(losses.mean(), trained, allow_unused=True)
    except InvalidModelError:
        raise
    except Exception as error:
        raise InvalidModelError(f"its loss has no gradient ({_sentence(error)})") from error
    unused = [
        name
        for (name, _), gradient in zip(
            ((n, p) for n, p in model.named_parameters() if p.requires_grad), gradients, strict=True
        )
        if gradient is None
    ]
    if unused:
        raise InvalidModelError(
            f"its parameter {unused[0]!r} is not used in the forward pass: remove or freeze it"
        )


def _sentence(error: Exception) -> str:
    """Return an error as part of a sentence."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}".rstrip(" .:")
