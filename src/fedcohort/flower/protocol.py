"""What the adapter's two ends say to each other, and how it is read.

A client answers ``query.profile`` with its name, its size and the vectors it is asked for, and
``query.loss`` with the loss of the model it is sent. Both are ordinary Flower messages, so a
client may also write its own handlers with ``@app.query("profile")`` and ``@app.query("loss")``::

    query   arrays: ArrayRecord      the model to profile or evaluate (only if it is needed)
            fedcohort: ConfigRecord  wants: list of "profile", "label_counts", "loss"
    reply   vectors: ArrayRecord     profile: float [Q], label_counts: number [N], as wanted
            metrics: MetricRecord    num-examples: samples the client holds; loss: as wanted
            fedcohort: ConfigRecord  client-id: a name that survives a restart
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedcohort.errors import RefusedReplyError
from fedcohort.flower.arrays import check_values, read_array
from fedcohort.selection import Need

PROFILE_ACTION = "profile"
LOSS_ACTION = "loss"
PROFILE_QUERY = f"query.{PROFILE_ACTION}"
LOSS_QUERY = f"query.{LOSS_ACTION}"

ARRAYS = "arrays"
CONFIG = "fedcohort"
VECTORS = "vectors"
METRICS = "metrics"
SIZE = "num-examples"
CLIENT_ID = "client-id"
WANTS = "wants"

# What a client sends when it joins, if the selector declares the need.
VECTOR_NEEDS = (Need.PROFILE, Need.LABEL_COUNTS)

_LONGEST_NAME = 200
_LARGEST_SIZE = 1e15


@dataclasses.dataclass(frozen=True, eq=False)
class Introduction:
    """What a client says of itself when it joins.

    Attributes
    ----------
    name : str
        A name that survives a restart of the client; empty if it has none.
    size : float
        Samples it holds.
    vectors : dict of float [Q]
        What the selector needs of every client, by need.
    """

    name: str
    size: float
    vectors: Mapping[Need, NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class Limits:
    """How much a client may send before it is taken for nonsense.

    Attributes
    ----------
    profile_numbers : int
        The longest profile.
    largest_value : float
        The largest number in a profile or in a trained model.
    """

    profile_numbers: int = 1_000_000
    largest_value: float = 1e6


def query_content(wants: Iterable[Need], arrays: ArrayRecord | None) -> RecordDict:
    """Return the content of a query, with a model if there is one to answer with."""
    content = RecordDict({CONFIG: ConfigRecord({WANTS: [need.value for need in wants]})})
    if arrays is not None:
        content[ARRAYS] = arrays
    return content


def wanted(message: Message) -> frozenset[Need]:
    """Return what a query asks for; words of a later version are ignored."""
    record = message.content.get(CONFIG)
    words = record.get(WANTS, []) if isinstance(record, ConfigRecord) else []
    known = {need.value: need for need in Need}
    names = words if isinstance(words, list) else []
    return frozenset(known[str(word)] for word in names if word in known)


def introduction_content(name: str, size: int, vectors: Mapping[Need, NDArray[Any]]) -> RecordDict:
    """Return the content of a client's answer to the profile query."""
    return RecordDict(
        {
            VECTORS: ArrayRecord({need.value: Array(v) for need, v in vectors.items()}),
            METRICS: MetricRecord({SIZE: int(size)}),
            CONFIG: ConfigRecord({CLIENT_ID: name}),
        }
    )


def read_introduction(
    content: RecordDict, wants: Iterable[Need], limits: Limits, *, expected: Mapping[Need, int]
) -> Introduction:
    """Read a client's answer to the profile query.

    Parameters
    ----------
    content : RecordDict
        What it sent.
    wants : iterable of Need
        What it was asked for.
    limits : Limits
        What is accepted.
    expected : dict of int
        The length that vectors must have, where other clients have settled it.

    Raises
    ------
    RefusedReplyError
        When something is missing, or nonsense.
    """
    arrays = content.get(VECTORS)
    vectors: dict[Need, NDArray[Any]] = {}
    for need in wants:
        what = f"its {need.value}"
        if not isinstance(arrays, ArrayRecord) or need.value not in arrays:
            raise RefusedReplyError(f"{what} is missing")
        kinds = "f" if need is Need.PROFILE else "fiu"
        vector = read_array(
            arrays[need.value], kinds=kinds, most_numbers=limits.profile_numbers, what=what
        )
        if vector.ndim != 1 or vector.size == 0:
            raise RefusedReplyError(f"{what} has shape {list(vector.shape)}, not [Q]")
        if vector.size != expected.get(need, vector.size):
            raise RefusedReplyError(
                f"{what} has {vector.size} numbers where the others have {expected[need]}"
            )
        check_values(vector, limits.largest_value, what)
        # Float16 would overflow in sums of squares; selectors take single or double precision.
        vectors[need] = vector.astype(np.float64 if vector.dtype.itemsize > 4 else np.float32)
    return Introduction(_name(content), _size(content), vectors)


def read_loss(content: RecordDict, limits: Limits) -> float:
    """Read a client's answer to the loss query."""
    metrics = content.get(METRICS)
    value = metrics.get(Need.LOSS.value) if isinstance(metrics, MetricRecord) else None
    loss = finite(value)
    if loss is None or abs(loss) > limits.largest_value:
        raise RefusedReplyError(f"its loss is {value!r}, not a finite number")
    return loss


def finite(value: object) -> float | None:
    """Return a metric as a float if it is one finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _name(content: RecordDict) -> str:
    record = content.get(CONFIG)
    name = record.get(CLIENT_ID, "") if isinstance(record, ConfigRecord) else ""
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or not name.isprintable():
        raise RefusedReplyError(f"its {CLIENT_ID} is not a short printable text")
    return name


def _size(content: RecordDict) -> float:
    metrics = content.get(METRICS)
    value = metrics.get(SIZE) if isinstance(metrics, MetricRecord) else None
    size = finite(value)
    if size is None or not 0 < size <= _LARGEST_SIZE:
        raise RefusedReplyError(f"its {SIZE} is {value!r}, not a number of samples")
    return size
