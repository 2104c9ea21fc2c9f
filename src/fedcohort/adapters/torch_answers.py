"""What a PyTorch client answers, from the model and the data that it trains with."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import InvalidInputError
from fedcohort.privacy import Promise

if TYPE_CHECKING:
    from torch import Tensor, nn


def samples_in(batches: Iterable[Any]) -> int:
    """Return how many samples the batches hold."""
    return sum(len(x) for x, _ in pairs(batches))


def profile_of(
    model: "nn.Module", batches: Iterable[Any], promise: Promise | None, layer: str | None
) -> NDArray[np.float32]:
    """Return the profile of the data [Q], noised if there is a promise."""
    import torch

    from fedcohort.profiles import fc1_profiles, private_profiles

    x = torch.cat([x for x, _ in pairs(batches)])
    rows, sizes = torch.arange(len(x)), torch.tensor([len(x)])
    vector: NDArray[np.float32]
    if promise is None:
        vector = fc1_profiles(model, x, rows, sizes, layer=layer)[0].numpy()
    else:
        vector = private_profiles(model, x, rows, sizes, promise, layer=layer)[0]
    return vector


def promise_on(promise: Promise, layer: str | None) -> str:
    """Say what the profile of a layer promises: that of another layer is another answer."""
    return str(promise) + (f" at {layer!r}" if layer else "")


def loss_of(
    model: "nn.Module",
    batches: Iterable[Any],
    criterion: "Callable[[Tensor, Tensor], Tensor] | None",
) -> float:
    """Return the mean loss over all samples; cross-entropy unless a criterion is given."""
    import torch

    measure = criterion or torch.nn.functional.cross_entropy
    total, count = 0.0, 0
    with torch.no_grad():
        for x, y in pairs(batches):
            total += float(measure(model(x), y)) * len(x)
            count += len(x)
    return total / max(count, 1)


def agreement_of(
    model: "nn.Module",
    batches: Iterable[Any],
    criterion: "Callable[[Tensor, Tensor], Tensor] | None",
    log: logging.Logger,
) -> float | None:
    """Return how far the gradients of the data agree; see `fedcohort.profiles.agreement`.

    It is for advice alone, so that a model or a criterion of which there is none says so in the
    client's log, and goes without.
    """
    import torch

    from fedcohort.profiles import output_gradients

    parts = list(pairs(batches))
    x, y = (torch.cat([part[place] for part in parts]) for place in (0, 1))
    if criterion is None and y.is_floating_point():
        return None
    measure = criterion or torch.nn.functional.cross_entropy
    rows, sizes = torch.arange(len(x), device=x.device), torch.tensor([len(x)], device=x.device)

    def losses(outputs: "Tensor", targets: "Tensor") -> "Tensor":
        if outputs.dim() > 2:
            raise InvalidInputError(f"outputs have the shape {list(outputs.shape)}, not [B, K]")
        # A criterion is the mean of a batch.
        return measure(outputs, targets) * len(outputs)

    try:
        found = output_gradients(model, x, y, rows, sizes, losses)
    except Exception as error:
        # A user's model and criterion decide how they fail.
        log.info("No agreement of gradients is sent for advice: %s.", error)
        return None
    agreement = found.agreements.item()
    return agreement if math.isfinite(agreement) else None


def pairs(batches: Iterable[Any]) -> "Iterable[tuple[Tensor, Tensor]]":
    """Yield inputs and labels of batches that are pairs, or mappings of two tensors."""
    for batch in batches:
        parts = tuple(batch.values()) if isinstance(batch, Mapping) else tuple(batch)
        if len(parts) != 2:
            raise InvalidInputError(
                f"A batch has {len(parts)} parts: a profile needs inputs and labels, so let `load`"
                " return batches of two."
            )
        yield parts
