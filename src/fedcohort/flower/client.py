"""The client's end: answer what the server's selector asks, from what the ClientApp already has."""

import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import ArrayLike, NDArray

from fedcohort.errors import InvalidInputError
from fedcohort.flower.privacy import check_protection, protected
from fedcohort.flower.protocol import (
    ARRAYS,
    CLIENT_ID,
    CONFIG,
    LOSS_ACTION,
    METRICS,
    PROFILE_ACTION,
    introduction_content,
    wanted,
)
from fedcohort.selection import Need

ID_KEY = "fedcohort-id"
ID_FILE_KEY = "fedcohort-id-file"
PARTITION_KEY = "partition-id"

_SENT = "fedcohort.sent"


def answer_queries(
    app: ClientApp,
    *,
    size: Callable[[Context], int],
    profile: Callable[[ArrayRecord | None, Context], ArrayLike] | None = None,
    loss: Callable[[ArrayRecord | None, Context], float] | None = None,
    label_counts: Callable[[Context], ArrayLike] | None = None,
    clip: float | None = None,
    sigma: float = 0.0,
    client_id: Callable[[Context], str] | None = None,
) -> None:
    """Register answers to the server's queries; each function is called only when asked.

    Parameters
    ----------
    app : flwr.clientapp.ClientApp
        The app to answer with, before it is run.
    size : callable
        ``size(context)``: samples that this client holds.
    profile : callable, optional
        ``profile(arrays, context)``: the client's profile [Q], with the model it is asked to
        measure it with.
    loss : callable, optional
        ``loss(arrays, context)``: the mean loss of the model `arrays` on the client's data.
    label_counts : callable, optional
        ``label_counts(context)``: samples of each class [N]; give it only if the client agrees
        to reveal them.
    clip, sigma : float
        Largest norm of the profile, and standard deviation of the Gaussian noise on it, before it
        leaves the client; see `fedcohort.flower.protected`. They promise no ε by themselves:
        `profile_query` has one.
    client_id : callable, optional
        ``client_id(context)``: a name that survives a restart; by default `stable_id`.
    """
    check_protection(clip, sigma)

    def vectors(message: Message, context: Context) -> dict[Need, NDArray[np.float32]]:
        answers: dict[Need, Callable[[], NDArray[np.float32]]] = {}
        if profile is not None:
            answers[Need.PROFILE] = lambda: _profile_once(
                context,
                lambda: protected(profile(_model(message), context), clip=clip, sigma=sigma),
            )
        if label_counts is not None:
            answers[Need.LABEL_COUNTS] = lambda: np.asarray(label_counts(context), np.float32)
        return {need: answers[need]() for need in wanted(message) if need in answers}

    @app.query(PROFILE_ACTION)
    def introduce(message: Message, context: Context) -> Message:
        content = introduction_content(
            (client_id or stable_id)(context), size(context), vectors(message, context)
        )
        return Message(content, reply_to=message)

    if loss is None:
        return

    @app.query(LOSS_ACTION)
    def tell_loss(message: Message, context: Context) -> Message:
        value = float(loss(_model(message), context))
        content = RecordDict(
            {
                METRICS: MetricRecord({Need.LOSS.value: value}),
                CONFIG: ConfigRecord({CLIENT_ID: (client_id or stable_id)(context)}),
            }
        )
        return Message(content, reply_to=message)


def stable_id(context: Context) -> str:
    """Return a name that survives a restart of the SuperNode, from its ``--node-config``.

    In this order: ``fedcohort-id="NAME"``; ``fedcohort-id-file="PATH"``, a file that is written
    with a random name once; ``partition-id=N``. Without any of them the name is empty, and the
    server knows the client by Flower's node id, which lasts as long as the SuperNode's
    authentication key (or, without a key, as long as its process).
    """
    config = context.node_config
    if ID_KEY in config:
        return str(config[ID_KEY])
    if ID_FILE_KEY in config:
        return _id_in(Path(str(config[ID_FILE_KEY])))
    return str(config.get(PARTITION_KEY, ""))


def _id_in(path: Path) -> str:
    try:
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(uuid.uuid4().hex)
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InvalidInputError(
            f"The client's id cannot be kept in {path} ({error.strerror}): give {ID_FILE_KEY} a"
            " file that this SuperNode may write."
        ) from error


def _model(message: Message) -> ArrayRecord | None:
    record = message.content.get(ARRAYS)
    return record if isinstance(record, ArrayRecord) else None


def _profile_once(
    context: Context, measure: Callable[[], NDArray[np.float32]]
) -> NDArray[np.float32]:
    """Measure and protect the profile once per run: fresh noise each time could be averaged out."""
    kept = context.state.get(_SENT)
    if isinstance(kept, ArrayRecord):
        return kept.to_numpy_ndarrays()[0]
    sent = measure()
    context.state[_SENT] = ArrayRecord([sent])
    return sent
