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
    inner = layer is None and reads_input(model)

    def keep(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        values = (inputs[0] if inner else output).double()
        along_sequence = isinstance(read, nn.Linear) and values.dim() == 3
        rows = values.mean(1) if along_sequence else values.flatten(1)
        outputs.append(each(rows) if each else rows)
        raise _ReachedError

    handle = read.register_forward_hook(keep)
    try:
        for part in torch.split(samples, samples_at_once):
            try:
                model(x[part])
            except _ReachedError:
                continue
            raise InvalidModelError(
                f"The model's forward pass never reaches layer {layer or 'FC-1'!r}: name one that"
                " it uses."
            )
    finally:
        handle.remove()
    means = torch.segment_reduce(torch.cat(outputs), "mean", lengths=sizes, axis=0)
    return means if each else means.float()


def find_layer(model: nn.Module, name: str | None) -> nn.Module:
    """Return the layer called `name`, or the first `nn.Linear`."""
    layers: dict[str, nn.Module] = dict(model.named_modules())
    if name is not None:
        if name not in layers:
            raise InvalidModelError(
                f"The model has no layer {name!r}: choose one of {', '.join(filter(None, layers))}."
            )
        return layers[name]
    for layer in layers.values():
        if isinstance(layer, nn.Linear):
            return layer
    raise InvalidModelError(
        "The model has no fully connected layer to profile with: name another layer."
    )


def reads_input(model: nn.Module) -> bool:
    """Tell whether the only fully connected layer is the output, so that its input is read."""
    return sum(isinstance(layer, nn.Linear) for layer in model.modules()) == 1


def describe_layer(model: nn.Module, name: str | None) -> str:
    """Say what profiles are read from, such as ``outputs of fc1`` or ``inputs of fc``."""
    layer = find_layer(model, name)
    called = next(n for n, module in model.named_modules() if module is layer)
    side = "inputs" if name is None and reads_input(model) else "outputs"
    return f"{side} of {called or type(layer).__name__}"
