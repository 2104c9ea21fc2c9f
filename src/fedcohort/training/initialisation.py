"""The paper's four initialisations, beside PyTorch's own.

X. Glorot, Y. Bengio: Understanding the difficulty of training deep feedforward neural networks.
AISTATS 2010 (Xavier). K. He et al.: Delving deep into rectifiers. ICCV 2015 (Kaiming).
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from fedcohort.errors import InvalidParameterError, UnknownNameError
from fedcohort.training import INITIALISATIONS

_WEIGHTS: dict[str, Callable[..., Tensor]] = {
    "xavier-normal": nn.init.xavier_normal_,
    "xavier-uniform": nn.init.xavier_uniform_,
    "kaiming-normal": partial(nn.init.kaiming_normal_, nonlinearity="relu"),
    "kaiming-uniform": partial(nn.init.kaiming_uniform_, nonlinearity="relu"),
}


def initialise(model: nn.Module, scheme: str, seed: int) -> nn.Module:
    """Draw the weights of all linear and convolutional layers anew, in place; biases become 0.

    `scheme` is one of `INITIALISATIONS`; ``default`` leaves the model as it is. One that reaches no
    layer, or not all of them, is refused with `InvalidParameterError`.
    """
    if scheme not in INITIALISATIONS:
        raise UnknownNameError("initialisation", scheme, INITIALISATIONS)
    if scheme == "default":
        return model
    generator = torch.Generator().manual_seed(seed)
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.modules.conv._ConvNd)]
    if not layers:
        raise InvalidParameterError(
            f"init of the run is {scheme}, and the model has no linear or convolutional layer that"
            " it is for: leave it out."
        )
    for layer in layers:
        if is_parametrized(layer, "weight"):
            _assign(layer, _WEIGHTS[scheme](torch.empty_like(layer.weight), generator=generator))
        else:
            _WEIGHTS[scheme](layer.weight, generator=generator)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return model


@torch.no_grad()
def _assign(layer: nn.Module, weight: Tensor) -> None:
    """Have a parametrisation compute this weight, or refuse one that cannot."""
    try:
        layer.weight = weight
        reached = torch.allclose(layer.weight, weight, rtol=1e-4, atol=1e-6)
    except (NotImplementedError, RuntimeError, ValueError):
        reached = False
    if not reached:
        raise InvalidParameterError(
            f"init of the run does not reach the weight of a {type(layer).__name__}, which is"
            " computed from others: leave it out, and draw first weights in the model."
        )
