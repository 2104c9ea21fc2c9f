"""The client's end: answer what the server's selector asks, from what the ClientApp already has."""

import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import ArrayLike, NDArray

from fedcohort.adapters.introductions import CLIENT_ID
from fedcohort.adapters.kept_answers import Answers
from fedcohort.errors import InvalidInputError
from fedcohort.flower.log import log
from fedcohort.flower.privacy import check_protection, protected
from fedcohort.flower.protocol import (
    ARRAYS,
    CONFIG,
    LOSS_ACTION,
    METRICS,
    PROFILE_ACTION,
    introduction_content,
    wanted,
)
from fedcohort.flower.state import arrays_of
from fedcohort.selection import Need

ID_KEY = "fedcohort-id"
ID_FILE_KEY = "fedcohort-id-file"
PARTITION_KEY = "partition-id"
TAGS_KEY = "fedcohort-tags"
ANSWERS_KEY = "fedcohort-answers"

_SENT = "fedcohort.sent"


def answer_queries(
    app: ClientApp,
    *,
    size: Callable[[Context], int],
    profile: Callable[[ArrayRecord | None, Context], ArrayLike] | None = None,
    loss: Callable[[ArrayRecord | None, Context], float] | None = None,
    label_counts: Callable[[Context], ArrayLike] | None = None,
    agreement: Callable[[ArrayRecord | None, Context], float | None] | None = None,
    clip: float | None = None,
    sigma: float = 0.0,
    promise: str | None = None,
    most_answers: int | None = None,
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
        ``profile(arrays, context)``: the client's profile [Q], measured with the model `arrays`.
    loss : callable, optional
        ``loss(arrays, context)``: the mean loss of the model `arrays` on the client's data.
    label_counts : callable, optional
        ``label_counts(context)``: samples of each class [N], if the client may reveal them.
    agreement : callable, optional
        ``agreement(arrays, context)``: how far the gradients of its samples agree, or None (see
        `fedcohort.profiles.agreement`). It goes with the profile, unnoised, for advice.
    clip, sigma : float
        Largest norm of the profile, and standard deviation of the Gaussian noise on it, before it
        leaves the client; see `fedcohort.flower.protected`. They promise no ε by themselves:
        `profile_query` has one.
    promise : str, optional
        What a noised profile promises, in words, if `profile` adds noise itself. Noised profiles
        are kept on the client's disk and given again after a restart.
    most_answers : int, optional
        Noised profiles for different models that may leave the client.
    client_id : callable, optional
        ``client_id(context)``: a name that survives a restart; by default `stable_id`.

    Examples
    --------
    >>> answer_queries(ClientApp(), size=lambda context: 120, label_counts=lambda context: [60, 60])
    """
    check_protection(clip, sigma)
    noised = promise or (f"noise of {sigma:g} on norms up to {clip:g}" if sigma and clip else "")
    named = _in_words(client_id or stable_id)

    def own_profile(message: Message, context: Context) -> NDArray[np.float32]:
        assert profile is not None
        model = _model(message)
        draw = lambda: protected(profile(model, context), clip=clip, sigma=sigma)  # noqa: E731
        return _once(context, named(context), model, noised, draw, most_answers)

    def introduce(message: Message, context: Context) -> Message:
        wants, vectors, agreed = wanted(message), {}, None
        if profile is not None and Need.PROFILE in wants:
            vectors[Need.PROFILE] = own_profile(message, context)
            agreed = agreement(_model(message), context) if agreement else None
        if label_counts is not None and Need.LABEL_COUNTS in wants:
            vectors[Need.LABEL_COUNTS] = np.asarray(label_counts(context), np.float32)
        said = named(context), size(context), vectors, tags_of(context), agreed
        return Message(introduction_content(*said), reply_to=message)

    _register(app, PROFILE_ACTION, introduce)
    if loss is not None:
        _answer_losses(app, loss, named)


def _in_words(client_id: Callable[[Context], object]) -> Callable[[Context], str]:
    """Let names be numbers too; None is no name, and not that of everybody who has none."""

    def named(context: Context) -> str:
        name = client_id(context)
        return "" if name is None else str(name)

    return named


def _answer_losses(
    app: ClientApp,
    loss: Callable[[ArrayRecord | None, Context], float],
    named: Callable[[Context], str],
) -> None:
    def tell_loss(message: Message, context: Context) -> Message:
        value = float(loss(_model(message), context))
        content = RecordDict(
            {
                METRICS: MetricRecord({Need.LOSS.value: value}),
                CONFIG: ConfigRecord({CLIENT_ID: named(context)}),
            }
        )
        return Message(content, reply_to=message)

    _register(app, LOSS_ACTION, tell_loss)


def _once(
    context: Context,
    name: str,
    model: ArrayRecord | None,
    promise: str,
    draw: Callable[[], NDArray[np.float32]],
    most: int | None,
) -> NDArray[np.float32]:
    """Measure and protect the profile once per run, and noise it once for each model."""
    kept = context.state.get(_SENT)
    if isinstance(kept, ArrayRecord):
        return kept.to_numpy_ndarrays()[0]
    if promise and not name:
        log.warning(
            "This client has no name of its own (%s, %s): unless its SuperNode has a key, every"
            " restart draws a new noised profile, and most_answers does not see that.",
            ID_KEY,
            ID_FILE_KEY,
        )
    if promise:
        folder = context.node_config.get(ANSWERS_KEY)
        answers = Answers.at(None if folder is None else str(folder), log)
        arrays = {} if model is None else arrays_of(model)
        sent = answers.once(name or f"node:{context.node_id}", arrays, promise, draw, most=most)
    else:
        return draw()
    context.state[_SENT] = ArrayRecord([sent])
    return sent


def _register(app: ClientApp, action: str, answer: Callable[[Message, Context], Message]) -> None:
    """Register an answer past the mods of the whole app, which are made for training.

    ``ClientApp(mods=[...])`` puts its mods around queries too, where they find neither the records
    nor the settings of a train message. Mods of ``@app.train(mods=[...])`` are not touched.
    """
    app.query(action)(answer)
    registered = getattr(app, "_registered_funcs", None)
    if isinstance(registered, dict) and f"query.{action}" in registered:
        registered[f"query.{action}"] = answer


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


def tags_of(context: Context) -> list[str]:
    """Return a client's tags from its ``--node-config``: ``fedcohort-tags="gpu,night"``."""
    words = str(context.node_config.get(TAGS_KEY, "")).split(",")
    return [word.strip() for word in words if word.strip()]
