"""The paper's profile: mean pre-activation output of the first fully connected layer (FC-1).

Y. Zhang et al.: DPP-based Client Selection for Federated Learning with Non-IID Data. ICASSP 2023,
equation (data_profile); the idea of profiling by FC-1 outputs is from W. Wu et al., FedProf, 2021.

Rule: f_c = the mean over the client's samples of the outputs of FC-1 of the initial global model,
before the activation function. FC-1 is the first fully connected layer where that is a hidden one.
Where the only one is the output layer, as in residual and recurrent networks, its *input* is read:
a few logits of an untrained network say little. Of a layer that is applied along a sequence, the
mean over its places is read.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedcohort.errors import InvalidModelError


class _ReachedError(Exception):
    """Ends a forward pass once the layer has answered."""


@torch.no_grad()
def fc1_profiles(
    model: nn.Module,
    x: Tensor,
    samples: Tensor,
    sizes: Tensor,
    *,
    layer: str | None = None,
    each: Callable[[Tensor], Tensor] | None = None,
    samples_at_once: int = 2000,
) -> Tensor:
    """Return the profiles of m clients.

    Parameters
    ----------
    model : nn.Module
        The initial global model.
    x : float32 [N, ...]
        Inputs of the whole data set.
    samples : int64 [total]
        Sample indices, client after client.
    sizes : int64 [m]
        Samples of each client.
    layer : str, optional
        Name of the layer whose outputs are read; see above if not given.
    each : callable, optional
        What is done to the outputs, float64 [n, Q], of every sample before the mean.
    samples_at_once : int
        Samples per forward pass.

    Returns
    -------
    float32 [m, Q]
        One profile per client; float64 if `each` is given.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> fc1_profiles(model, torch.ones(6, 4), torch.arange(6), torch.tensor([2, 4])).shape
    torch.Size([2, 8])
    """
    outputs: list[Tensor] = []
    read = find_layer(model, layer)
    name = called(model, read)
    inner = layer is None and reads_input(model)

    def keep(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        answer = next(iter((*inputs, *named.values()))) if inner else output
        rows = _rows(answer, len(part), read, name)
        outputs.append(each(rows) if each else rows)
        raise _ReachedError

    handle = read.register_forward_hook(keep, with_kwargs=True)
    try:
        for part in torch.split(samples, samples_at_once):
            try:
                model(x[part])
            except _ReachedError:
                continue
            raise InvalidModelError(
                f"The model's forward pass never calls the layer {name}, which profiles are read"
                " from: name one that it calls (profile_layer, layer)."
            )
    finally:
        handle.remove()
    means = torch.segment_reduce(torch.cat(outputs), "mean", lengths=sizes, axis=0)
    return means if each else means.float()


def _rows(answer: Any, count: int, layer: nn.Module, name: str) -> Tensor:
    """Return what a layer says of each of `count` samples, float64 [count, Q]."""
    # Recurrent layers and attention return more than their outputs.
    values = answer[0] if isinstance(answer, tuple) else answer
    if not isinstance(values, Tensor) or values.shape[:1] != (count,):
        raise InvalidModelError(
            f"The layer {name}, which profiles are read from, returns no row for each sample: name"
            " one that does (profile_layer, layer)."
        )
    along_sequence = isinstance(layer, nn.Linear) and values.dim() == 3
    values = values.double()
    return values.mean(1) if along_sequence else values[:, None].flatten(1)


def find_layer(model: nn.Module, name: str | None) -> nn.Module:
    """Return the layer called `name`, or the first fully connected one."""
    if name is not None:
        layers: dict[str, nn.Module] = dict(model.named_modules())
        if name not in layers:
            raise InvalidModelError(
                f"The model has no layer {name!r}: choose one of {', '.join(filter(None, layers))}."
            )
        return layers[name]
    if connected := _connected(model):
        return connected[0]
    raise InvalidModelError(
        "The model has no fully connected layer to profile with: name another layer, in a"
        " run by profile_layer."
    )


def reads_input(model: nn.Module) -> bool:
    """Tell whether the only fully connected layer is the output, so that its input is read."""
    return len(_connected(model)) == 1


def _connected(model: nn.Module) -> list[nn.Linear]:
    """Return the fully connected layers; that of attention is computed without being called."""
    inside = nn.modules.linear.NonDynamicallyQuantizableLinear
    return [m for m in model.modules() if isinstance(m, nn.Linear) and not isinstance(m, inside)]


def describe_layer(model: nn.Module, name: str | None) -> str:
    """Say what profiles are read from, such as ``outputs of fc1`` or ``inputs of fc``."""
    side = "inputs" if name is None and reads_input(model) else "outputs"
    return f"{side} of {called(model, find_layer(model, name))}"


def called(model: nn.Module, layer: nn.Module) -> str:
    """Return what a model calls a layer of its own."""
    name = next(name for name, module in model.named_modules() if module is layer)
    return name or type(layer).__name__
