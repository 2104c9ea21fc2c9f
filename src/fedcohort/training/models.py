"""The models that clients train: those that come with us by name, and yours."""

import contextlib
import copy
import inspect
import threading
from collections.abc import Callable, Iterator
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
from fedcohort.training.keyed import KeyedDropout
from fedcohort.training.modules import read_traits
from fedcohort.training.repeatability import (
    check_first_weights,
    check_seeds,
    checked_outputs,
    in_words,
    is_changed,
    outputs_for,
    repeated_without_chance,
)
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

_CHECKED_SAMPLES = 4

# Those that NumPy has too.
_BUFFERS = (torch.float16, torch.float32, torch.float64)

# PyTorch's generator is the process's: one thread at a time may lend it, or watch it.
_GLOBAL_GENERATOR = threading.RLock()


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
    with _GLOBAL_GENERATOR:
        built = _build(model, dataset, task, seed)
        with _refusing(model):
            _check_model(built, dataset, task)
    return built


def check_factory(model: str | Factory, dataset: Dataset, task: Task, seed: int) -> None:
    """Refuse what builds other models under the same seed, or such that seeds cannot share.

    Parameters and errors are as in `build_model`, which looks at a single model.
    """
    with _GLOBAL_GENERATOR:
        one = build_model(model, dataset, task, seed)
        again, other = (_build(model, dataset, task, s) for s in (seed, seed ^ 1))
        with _refusing(model):
            check_first_weights(one, again)
            check_seeds(one, other, _some_samples(dataset)[0])


# First weights may be computed, as orthogonal ones are, and sums depend on the threads.
@one_thread_per_operation()
def _build(model: str | Factory, dataset: Dataset, task: Task, seed: int) -> nn.Module:
    """Return what a factory builds under a seed; a copy, since it may build the same one again."""
    factory = find_factory(model, dataset)
    parameters = _parameters(model, factory, dataset)
    # Layers draw their first weights from PyTorch's global generator: lend them one of our own.
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(seed)
        try:
            built = factory(dataset.x_train.shape[1:], task.outputs, **parameters)
        except Exception as error:
            raise InvalidModelError(
                f"Model {_name_of(model)!r} cannot be built for inputs of shape"
                f" {list(dataset.x_train.shape[1:])}: {in_words(error)}."
            ) from error
    if isinstance(built, nn.Module):
        with _refusing(model):
            _check_hooks(built)
    try:
        return copy.deepcopy(built)
    except Exception as error:
        raise InvalidModelError(
            f"Model {_name_of(model)!r} cannot be copied, and each worker has a copy of it"
            f" ({in_words(error)}): keep no locks and no computed tensors in it, and take"
            " weight_norm from torch.nn.utils.parametrizations."
        ) from error


def _check_hooks(model: nn.Module) -> None:
    for name, p in model.named_parameters():
        if p._backward_hooks or p._post_accumulate_grad_hooks:
            raise InvalidModelError(
                f"its parameter {name!r} has a hook, which the copies that clients train do not"
                " have: put what it does into the forward pass"
            )


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
    x, y = _some_samples(dataset)
    outputs = checked_outputs(model, x)
    for part in outputs:
        _check_outputs(part, y, task)
    read_traits(model, x)
    with torch.no_grad():
        _checked_losses(outputs[1], y, task, "in evaluation")
    _check_gradients(copy.deepcopy(model).train(), x, y, task)


def _some_samples(dataset: Dataset) -> tuple[Tensor, Tensor]:
    # Twice, so that a batch of one sample's shape is not what decides.
    some = np.arange(_CHECKED_SAMPLES) % len(dataset.x_train)
    x = prepare_inputs(dataset.x_train[some], dataset, standard=True)
    return x, prepare_targets(dataset.y_train[some])


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
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point() and buffer.dtype not in _BUFFERS:
            raise InvalidModelError(
                f"its buffer {name!r} is {str(buffer.dtype).removeprefix('torch.')}, which is not"
                " stored: build it in float32"
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
        remedy = (
            ": give a model of your own that answers at every place, or, as targets [N] with that"
            " task, the token after each sample"
            if task.name == "next-token" and y.dim() == 2
            else ""
        )
        raise InvalidModelError(
            f"its outputs for {len(y)} samples have shape {list(outputs.shape)}, and the task"
            f" {task.name} needs {list(wanted[0])}{remedy}"
        )


def _checked_losses(outputs: Tensor, y: Tensor, task: Task, when: str) -> Tensor:
    """Return the loss of each sample, or refuse it."""

    def call() -> Tensor:
        targets = y.clone()
        losses = task.losses(outputs.clone(), targets)
        if is_changed(targets, y):
            raise InvalidModelError(
                "its loss changes the targets in place, which are the data set's: write y = y / 2"
                " for y /= 2"
            )
        return losses

    try:
        losses = repeated_without_chance("its loss", call)
    except InvalidModelError:
        raise
    except Exception as error:
        raise InvalidModelError(f"its loss fails {when} ({in_words(error)})") from error
    if losses.shape != (len(y),):
        raise InvalidModelError(
            f"the loss of {len(y)} samples has shape {list(losses.shape)}: return one loss per"
            " sample, without a mean"
        )
    return losses


def _check_gradients(model: nn.Module, x: Tensor, y: Tensor, task: Task) -> None:
    """Refuse a loss that cannot be descended along, with every parameter."""
    with KeyedDropout(torch.zeros((), dtype=torch.int64)):
        outputs = outputs_for(model, x)
    losses = _checked_losses(outputs, y, task, "in training")
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    try:
        gradients = torch.autograd.grad(losses.mean(), [*trained.values()], allow_unused=True)
    except Exception as error:
        raise InvalidModelError(f"its loss has no gradient ({in_words(error)})") from error
    for name, gradient in zip(trained, gradients, strict=True):
        if gradient is None:
            raise InvalidModelError(
                f"its parameter {name!r} is not used in the forward pass: remove or freeze it"
            )
