"""The paper's four initialisations, beside PyTorch's own.

X. Glorot, Y. Bengio: Understanding the difficulty of training deep feedforward neural networks.
AISTATS 2010 (Xavier). K. He et al.: Delving deep into rectifiers. ICCV 2015 (Kaiming).
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from fedcohort.errors import UnknownNameError
from fedcohort.training import INITIALISATIONS

_WEIGHTS: dict[str, Callable[..., Tensor]] = {
    "xavier-normal": nn.init.xavier_normal_,
    "xavier-uniform": nn.init.xavier_uniform_,
    "kaiming-normal": partial(nn.init.kaiming_normal_, nonlinearity="relu"),
    "kaiming-uniform": partial(nn.init.kaiming_uniform_, nonlinearity="relu"),
}


def initialise(model: nn.Module, scheme: str, seed: int) -> nn.Module:
    """Draw the weights of all linear and convolutional layers anew, in place; biases become 0.

    `scheme` is one of `INITIALISATIONS`; ``default`` leaves the model as it is.
    """
    if scheme not in INITIALISATIONS:
        raise UnknownNameError("initialisation", scheme, INITIALISATIONS)
    if scheme == "default":
        return model
    generator = torch.Generator().manual_seed(seed)
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
            _WEIGHTS[scheme](layer.weight, generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model
