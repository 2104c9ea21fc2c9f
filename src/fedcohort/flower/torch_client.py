"""The client's end for PyTorch: profile and loss from the model and the data it trains with."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedcohort.adapters.torch_answers import (
    agreement_of,
    loss_of,
    profile_of,
    promise_on,
    samples_in,
)
from fedcohort.flower.client import answer_queries
from fedcohort.flower.log import log
from fedcohort.privacy import promised

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
    protects: str = "sample",
    most_answers: int | None = None,
    losses: bool | None = None,
    client_id: Callable[[Context], str] | None = None,
) -> None:
    """Answer the server's queries with a PyTorch model and its data: profile, loss and agreement.

    Parameters
    ----------
    app : flwr.clientapp.ClientApp
        The app to answer with.
    load : callable
        ``load(context)`` returns the model (its weights are replaced by the server's) and batches
        to train on: a DataLoader of pairs ``(x, y)`` or mappings of two tensors, inputs first.
    layer : str, optional
        The layer whose mean output is the profile; the first fully connected one if not given.
    criterion : callable, optional
        ``criterion(outputs, y)``: mean loss of a batch; cross-entropy if not given.
    epsilon, delta : float
        What the profile promises (see `fedcohort.privacy.Promise`); without an ε it leaves the
        client as it is, with the agreement of gradients, for advice. All clients must take part in
        it, since a private profile is shorter than a plain one. The answer is kept on the client's
        disk, and given again after a restart (see `fedcohort.adapters.kept_answers`).
    protects : {"sample", "client"}
        Whom it is promised to: each of the client's samples, or the client as a whole, at a price
        that no selector here can bear (see docs/privacy.md).
    most_answers : int, optional
        Private profiles for different models that may leave the client; each spends ε. Without
        it, the client's log counts them.
    losses : bool, optional
        Whether the loss query is answered: exactly, for any model, as often as it is asked, which
        no ε covers. By default only without an ε.
    client_id : callable, optional
        As in `answer_queries`.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp()
    >>> profile_query(app, lambda context: (Net(), load_data(context)), epsilon=8)
    """
    promise = promised(epsilon, delta, protects)

    def profile(arrays: ArrayRecord | None, context: Context) -> NDArray[np.float32]:
        return profile_of(*_loaded(load, arrays, context), promise, layer)

    def loss(arrays: ArrayRecord | None, context: Context) -> float:
        return loss_of(*_loaded(load, arrays, context), criterion)

    def agreement(arrays: ArrayRecord | None, context: Context) -> float | None:
        return agreement_of(*_loaded(load, arrays, context), criterion, log)

    answer_queries(
        app,
        size=lambda context: samples_in(load(context)[1]),
        profile=profile,
        loss=loss if (promise is None if losses is None else losses) else None,
        agreement=agreement if promise is None else None,
        promise=None if promise is None else promise_on(promise, layer),
        most_answers=most_answers,
        client_id=client_id,
    )


def _loaded(
    load: Load, arrays: ArrayRecord | None, context: Context
) -> "tuple[nn.Module, Iterable[Any]]":
    model, batches = load(context)
    if arrays is not None:
        model.load_state_dict(arrays.to_torch_state_dict())
    model.eval()
    return model, batches
