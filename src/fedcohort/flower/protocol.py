"""What the adapter's two ends say to each other, and how it is read.

A client answers ``query.profile`` with its name, its size and the vectors it is asked for, and
``query.loss`` with the loss of the model it is sent. Both are ordinary Flower messages, so a
client may also write its own handlers with ``@app.query("profile")`` and ``@app.query("loss")``::

    query   arrays: ArrayRecord      the model to profile or evaluate (only if it is needed)
            fedcohort: ConfigRecord  wants: list of "profile", "label_counts", "loss"
    reply   vectors: ArrayRecord     profile: float [Q], label_counts: number [N], as wanted
            metrics: MetricRecord    num-examples: samples the client holds; loss: as wanted;
                                     agreement: of gradients, 0 to 1, beside a profile, if it likes
            fedcohort: ConfigRecord  client-id: a name that survives a restart; tags: list of words
"""

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedcohort.adapters.introductions import (
    AGREEMENT,
    CLIENT_ID,
    SIZE,
    TAGS,
    Introduction,
    Limits,
    checked_agreement,
    checked_loss,
    checked_name,
    checked_size,
    checked_tags,
    checked_vector,
    numbers_of,
)
from fedcohort.errors import RefusedReplyError
from fedcohort.flower.arrays import read_array
from fedcohort.selection import Need

PROFILE_ACTION = "profile"
LOSS_ACTION = "loss"
PROFILE_QUERY = f"query.{PROFILE_ACTION}"
LOSS_QUERY = f"query.{LOSS_ACTION}"

ARRAYS = "arrays"
CONFIG = "fedcohort"
VECTORS = "vectors"
METRICS = "metrics"
WANTS = "wants"


def query_content(wants: Iterable[Need], arrays: ArrayRecord | None) -> RecordDict:
    """Return the content of a query, with a model if there is one to answer with."""
    content = RecordDict({CONFIG: ConfigRecord({WANTS: [need.value for need in wants]})})
    if arrays is not None:
        content[ARRAYS] = arrays
    return content


def content_of(reply: Message) -> RecordDict:
    """Return what a reply holds, or raise `RefusedReplyError` with the reason of its error."""
    if not reply.has_error():
        return reply.content
    lines = (reply.error.reason or "").strip().splitlines()
    raise RefusedReplyError(lines[-1].strip().rstrip(".") if lines else f"error {reply.error.code}")


def wanted(message: Message) -> frozenset[Need]:
    """Return what a query asks for; words of a later version are ignored."""
    record = message.content.get(CONFIG)
    words = record.get(WANTS, []) if isinstance(record, ConfigRecord) else []
    return frozenset(n for n in Need if isinstance(words, list) and n.value in words)


def introduction_content(
    name: str,
    size: int,
    vectors: Mapping[Need, NDArray[Any]],
    tags: Iterable[str] = (),
    agreement: float | None = None,
) -> RecordDict:
    """Return the content of a client's answer to the profile query."""
    return RecordDict(
        {
            VECTORS: ArrayRecord({need.value: Array(v) for need, v in vectors.items()}),
            METRICS: MetricRecord({**numbers_of(size, agreement)}),
            CONFIG: ConfigRecord({CLIENT_ID: name, TAGS: list(tags)}),
        }
    )


def read_introduction(
    content: RecordDict, wants: Iterable[Need], limits: Limits, *, expected: Mapping[Need, int]
) -> Introduction:
    """Read a client's answer to the profile query, or raise `RefusedReplyError`.

    `expected` has the length that vectors must have, where other clients have settled it.
    """
    arrays = content.get(VECTORS)
    vectors: dict[Need, NDArray[Any]] = {}
    for need in wants:
        what = f"its {need.value}"
        if not isinstance(arrays, ArrayRecord) or need.value not in arrays:
            raise RefusedReplyError(f"{what} is missing")
        vector = read_array(
            arrays[need.value], kinds="fiu", most_numbers=limits.profile_numbers, what=what
        )
        vectors[need] = checked_vector(need, vector, limits, expected)
    config, metrics = content.get(CONFIG), content.get(METRICS)
    said = config if isinstance(config, ConfigRecord) else ConfigRecord()
    told = metrics if isinstance(metrics, MetricRecord) else MetricRecord()
    return Introduction(
        checked_name(said.get(CLIENT_ID, "")),
        checked_size(told.get(SIZE)),
        vectors,
        checked_tags(said.get(TAGS, [])),
        checked_agreement(told.get(AGREEMENT)),
    )


def read_loss(content: RecordDict, limits: Limits) -> float:
    """Read a client's answer to the loss query."""
    metrics = content.get(METRICS)
    return checked_loss(
        metrics.get(Need.LOSS.value) if isinstance(metrics, MetricRecord) else None, limits
    )
