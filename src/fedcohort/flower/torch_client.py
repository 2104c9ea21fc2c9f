"""The client's end for PyTorch: profile and loss from the model and the data it trains with."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedcohort.errors import InvalidInputError
from fedcohort.flower.client import answer_queries
from fedcohort.privacy import Promise

if TYPE_CHECKING:
    from torch import Tensor, nn

Load = Callable[[Context], tuple["nn.Module", Iterable[Any]]]


def profile_query(
    app: ClientApp,
    load: Load,
    *,
    layer: str | None = None,
    criterion: "Callable[[Tensor, Tensor], Tensor] | None" = None,
    epsilon: float | None = None,
    delta: float = 1e-5,
    client_id: Callable[[Context], str] | None = None,
) -> None:
    """Answer the server's profile and loss queries with a PyTorch model and its data.

    Parameters
    ----------
    app : flwr.clientapp.ClientApp
        The app to answer with.
    load : callable
        ``load(context)`` returns the model (its weights are replaced by the server's) and the
        training data: a DataLoader or any iterable of batches, pairs ``(x, y)`` or mappings of
        two tensors, inputs first.
    layer : str, optional
        The layer whose mean output is the profile; the first ``nn.Linear`` if not given.
    criterion : callable, optional
        ``criterion(outputs, y)``: mean loss of a batch; cross-entropy if not given.
    epsilon, delta : float
        What the profile promises each of the client's samples (see `fedcohort.privacy`); without
        an ε it leaves the client as it is. All clients must take part in it, since a private
        profile is shorter than a plain one.
    client_id : callable, optional
        As in `answer_queries`.

    Examples
    --------
    >>> profile_query(app, lambda context: (Net(), load_data(context)), epsilon=8)
    """
    promise = None if epsilon is None else Promise(epsilon, delta)

    def size(context: Context) -> int:
        return sum(len(x) for x, _ in _batches(load(context)[1]))

    def profile(arrays: ArrayRecord | None, context: Context) -> NDArray[np.float32]:
        import torch

        from fedcohort.profiles import fc1_profiles, private_profiles

        model, batches = _loaded(load, arrays, context)
        x = torch.cat([x for x, _ in _batches(batches)])
        rows, sizes = torch.arange(len(x)), torch.tensor([len(x)])
        vector: NDArray[np.float32]
        if promise is None:
            vector = fc1_profiles(model, x, rows, sizes, layer=layer)[0].numpy()
        else:
            vector = private_profiles(model, x, rows, sizes, promise, layer=layer)[0]
        return vector

    def loss(arrays: ArrayRecord | None, context: Context) -> float:
        import torch

        model, batches = _loaded(load, arrays, context)
        return _mean_loss(model, batches, criterion or torch.nn.functional.cross_entropy)

    answer_queries(app, size=size, profile=profile, loss=loss, client_id=client_id)


def _mean_loss(
    model: "nn.Module", batches: Iterable[Any], criterion: "Callable[[Tensor, Tensor], Tensor]"
) -> float:
    """Return the mean loss of all samples."""
    import torch

    total, count = 0.0, 0
    with torch.no_grad():
        for x, y in _batches(batches):
            total += float(criterion(model(x), y)) * len(x)
            count += len(x)
    return total / max(count, 1)


def _loaded(
    load: Load, arrays: ArrayRecord | None, context: Context
) -> "tuple[nn.Module, Iterable[Any]]":
    model, batches = load(context)
    if arrays is not None:
        model.load_state_dict(arrays.to_torch_state_dict())
    model.eval()
    return model, batches


def _batches(batches: Iterable[Any]) -> "Iterable[tuple[Tensor, Tensor]]":
    for batch in batches:
        parts = tuple(batch.values()) if isinstance(batch, Mapping) else tuple(batch)
        if len(parts) != 2:
            raise InvalidInputError(
                f"A batch has {len(parts)} parts: profile_query needs inputs and labels, so let"
                " `load` return batches of two."
            )
        yield parts
