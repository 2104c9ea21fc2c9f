"""What is asked of a model before it is trained, whoever made it.

A trainer loads a client's numbers into one of several copies of a model, which have run for other
clients and other seeds before. So outputs must be a function of these numbers, of the batch and of
a key: what a model keeps elsewhere, or draws elsewhere, would leak from one client to another.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedcohort.errors import InvalidModelError
from fedcohort.federation import Dataset
from fedcohort.training.inputs import some_samples
from fedcohort.training.keyed import KeyedDropout
from fedcohort.training.modules import load_state, named_state, output_of
from fedcohort.training.problem import Data, Parameters
from fedcohort.training.repeatability import repeated, repeated_without_chance, same_values
from fedcohort.training.task import Task
from fedcohort.training.workers import one_thread_per_operation

# Those that NumPy has too.
_BUFFERS = (torch.float16, torch.float32, torch.float64)


def check_parts(model: object) -> None:
    """Refuse parameters, buffers and layers that nobody can train, without running the model."""
    if not isinstance(model, nn.Module):
        raise InvalidModelError(f"its factory made a {type(model).__name__}, not an nn.Module")
    parameters = dict(model.named_parameters())
    if not any(p.requires_grad for p in parameters.values()):
        raise InvalidModelError("it has no parameter that is not frozen")
    for name, p in parameters.items():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise InvalidModelError(f"its parameter {name!r} has no shape yet: use no lazy layers")
        if p.dtype != torch.float32 or p.device.type != "cpu":
            raise InvalidModelError(
                f"its parameter {name!r} is {_type_of(p)} on {p.device}: build it in float32 on the"
                " CPU"
            )
        if p._backward_hooks or p._post_accumulate_grad_hooks:
            raise InvalidModelError(
                f"its parameter {name!r} has a hook, which the copies that clients train do not"
                " have: put what it does into the forward pass"
            )
    for name, values in named_state(model):
        if values.dtype not in _BUFFERS:
            raise InvalidModelError(
                f"its buffer {name!r} is {_type_of(values)}, which is not stored: build it in"
                " float32"
            )
        if values.layout != torch.strided:
            raise InvalidModelError(
                f"its {name!r} is sparse, which is not averaged: register it with persistent=False,"
                " or make it dense"
            )
    for name, part in model.named_modules():
        if isinstance(part, nn.RNNBase) and part.dropout:
            raise InvalidModelError(
                f"its layer {name!r} has dropout inside, which cannot be repeated from a key: put"
                " an nn.Dropout between layers instead"
            )
        if isinstance(part, _NormBase) and part.momentum is None:
            raise InvalidModelError(
                f"its layer {name!r} averages over all batches (momentum=None), of which clients"
                " have no common count: give it a momentum"
            )


def _type_of(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


# Two models are the same to the last bit, or they are not.
@one_thread_per_operation()
def check_model(
    one: nn.Module, again: nn.Module, other: nn.Module, dataset: Dataset, task: Task
) -> str:
    """Refuse what cannot be trained right, or is not the same for all seeds but for its weights.

    Parameters
    ----------
    one, again, other : nn.Module
        What a factory built under a seed, under the same once more, and under another; they are
        not changed.
    dataset, task : Dataset, Task
        What it will be trained on, and learn.

    Returns
    -------
    str
        Why it does not train on a batch of one sample; nothing if it does.
    """
    _check_first_weights(one, again)
    _check_seeds(one, other)
    x, y = data = some_samples(dataset)
    used, (state, theirs) = copy.deepcopy(one), map(_state_of, (one, other))
    # With other samples, weights and key than a model will have met, or what it keeps of them would
    # be the same; and in evaluation before anything is trained, since copies may share something.
    fresh = [_results(copy.deepcopy(other), theirs, x[:2], training=mode) for mode in (False, True)]
    # As a worker's copy is used: for clients' training first, and then for evaluation.
    repeated("its forward pass", lambda: _step(used, state, data, task))
    outputs = repeated_without_chance(
        "its forward pass", lambda: _forward(used, state, x, training=False)
    )
    _check_outputs(outputs, y, task)
    with torch.no_grad():
        _losses(outputs, y, task, "in evaluation")
    for training, expected in enumerate(fresh):
        found = _results(used, theirs, x[:2], training=bool(training))
        if not all(map(same_values, found, expected)):
            raise _differing(used, one, other, x[:2], training=bool(training))
    if words := _why_not_one(one, state, data, task, training=False):
        raise InvalidModelError(
            f"it cannot be evaluated on a single sample ({words}): where it uses squeeze(), which"
            " drops the axis of a single sample, too, name the axis, as in squeeze(-1), and let"
            " a BatchNorm track running statistics"
        )
    return _why_not_one(one, state, data, task, training=True)


def _state_of(model: nn.Module) -> Parameters:
    return {name: values.detach().clone() for name, values in named_state(model)}


def _check_first_weights(one: nn.Module, again: nn.Module) -> None:
    """Refuse models that were built under the same seed, and differ."""
    first, others = dict(named_state(one)), dict(named_state(again))
    _check_shapes(first, others, "it is built", _THE_SAME_LAYERS)
    for name, values in first.items():
        if not same_values(values, others[name]):
            raise InvalidModelError(
                f"the first weights of {name!r} are others each time it is built under the same"
                " seed: draw them with PyTorch's functions, without a generator of your own"
            )


def _check_seeds(one: nn.Module, other: nn.Module) -> None:
    """Refuse models of two seeds that differ in more than runs of several seeds keep apart."""
    own = dict(named_state(one))
    _check_shapes(own, dict(named_state(other)), "the seed changes", _THE_SAME_LAYERS)
    others = dict(other.named_buffers())
    for name, buffer in one.named_buffers():
        if name not in own and (name not in others or not same_values(buffer, others[name])):
            raise _depends_on_seed(f"its {name!r}")


_THE_SAME_LAYERS = "build the same layers each time"


def _check_shapes(before: Parameters, after: Parameters, when: str, remedy: str) -> None:
    one, other = ({name: list(v.shape) for name, v in state.items()} for state in (before, after))
    for name in one | other:
        if one.get(name) != other.get(name):
            raise InvalidModelError(
                f"its {name!r} has another shape when {when} ({one.get(name, 'none')} and"
                f" {other.get(name, 'none')}): {remedy}"
            )


def _forward(model: nn.Module, state: Parameters, x: Tensor, *, training: bool) -> Tensor:
    """Return the outputs of a model in some state for a copy of `x`, run as trainers run it."""
    load_state(model, state)
    given = x.clone()
    try:
        with torch.set_grad_enabled(training):
            outputs = output_of(model.train(training)(given))
    except InvalidModelError:
        raise
    except Exception as error:
        raise InvalidModelError(
            f"its forward pass fails on inputs of shape {list(x.shape)} and type {_type_of(x)}"
            f" ({in_words(error)})"
        ) from error
    if _is_changed(given, x):
        raise InvalidModelError(
            "it changes its inputs in place, which are the data set's: write x = x / 2 for x /= 2,"
            " and use no inplace=True before its first layer"
        )
    _check_shapes(
        state,
        dict(named_state(model)),
        "it has run",
        "register it as it will be when the model is built, or with persistent=False",
    )
    return outputs


def _is_changed(given: Tensor, first: Tensor) -> bool:
    """Tell whether a copy of a tensor was written to, by PyTorch or behind its back."""
    return given._version > 0 or not same_values(given, first)


def in_words(error: Exception) -> str:
    """Return an error as part of a sentence."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}".rstrip(" .:")


def _step(model: nn.Module, state: Parameters, data: Data, task: Task) -> Tensor:
    """Return the outputs of a training step; refuse one that not every parameter can descend by."""
    x, y = data
    outputs = _forward(model, state, x, training=True)
    _check_outputs(outputs, y, task)
    losses = _losses(outputs, y, task, "in training")
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
    return outputs.detach()


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
            f"its outputs for a batch of {len(y)} have shape {list(outputs.shape)}, and the task"
            f" {task.name} needs {list(wanted[0])}{remedy}"
        )


def _losses(outputs: Tensor, y: Tensor, task: Task, when: str) -> Tensor:
    """Return the loss of each sample, or refuse it."""

    def call() -> Tensor:
        targets = y.clone()
        losses = task.losses(outputs.clone(), targets)
        if _is_changed(targets, y):
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


def _results(model: nn.Module, state: Parameters, x: Tensor, *, training: bool) -> list[Tensor]:
    """Return the outputs of a model in some state, and what becomes of the state."""
    with KeyedDropout():
        outputs = _forward(model, state, x, training=training)
    return [outputs, *(values for _, values in named_state(model))]


def _differing(
    used: nn.Module, one: nn.Module, other: nn.Module, x: Tensor, *, training: bool
) -> InvalidModelError:
    """Say why a model that was used, and one of another seed, differ in the same state."""
    state = _state_of(other)
    pair = (_results(copy.deepcopy(m), state, x, training=training) for m in (one, other))
    if not all(map(same_values, *pair)):
        return _depends_on_seed(_what_differs(one, other))
    return InvalidModelError(
        f"what it gives depends on earlier batches by {_what_differs(used, one)}, which is not"
        " sent: register it as a float buffer (self.register_buffer)"
    )


def _depends_on_seed(what: str) -> InvalidModelError:
    return InvalidModelError(
        f"{what} depends on the seed, and clients and seeds have it in common: make it a parameter"
        " (frozen, if you like) or a float32 buffer in its state_dict(), or draw it from a seed of"
        " its own"
    )


def _what_differs(one: nn.Module, other: nn.Module) -> str:
    """Name a tensor that two models keep outside their state, and that differs."""
    sent = dict(named_state(one))
    for (layer, part), (_, twin) in zip(one.named_modules(), other.named_modules(), strict=False):
        own, others = (dict(m.named_buffers(recurse=False)) | vars(m) for m in (part, twin))
        for name, value in own.items():
            against, place = others.get(name), f"{layer}.{name}".lstrip(".")
            of_both = isinstance(value, Tensor) and isinstance(against, Tensor)
            if of_both and place not in sent and not same_values(value, against):
                return f"its {place!r}"
    return "something that is neither a parameter nor a float buffer"


def _why_not_one(
    model: nn.Module, state: Parameters, data: Data, task: Task, *, training: bool
) -> str:
    """Return what a model does wrong with a single sample; nothing if it does it right."""
    x, y = (values[:1] for values in data)
    try:
        with KeyedDropout():
            outputs = _forward(copy.deepcopy(model), state, x, training=training)
        _check_outputs(outputs, y, task)
    except InvalidModelError as error:
        return str(error)
    return ""
