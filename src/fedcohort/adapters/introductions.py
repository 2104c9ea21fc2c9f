"""What a client says of itself when it joins, and what of it is refused."""

import dataclasses
import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import RefusedReplyError
from fedcohort.selection import Need

SIZE = "num-examples"
CLIENT_ID = "client-id"
AGREEMENT = "agreement"
TAGS = "tags"

# What a client sends when it joins, if the selector declares the need.
VECTOR_NEEDS = (Need.PROFILE, Need.LABEL_COUNTS)

_LONGEST_NAME = 200
_MOST_TAGS = 100
_LARGEST_SIZE = 1e15


@dataclasses.dataclass(frozen=True, eq=False)
class Introduction:
    """What a client says of itself when it joins.

    Attributes
    ----------
    name : str
        A name that survives a restart of the client; empty if it has none.
    size : float, optional
        Samples it holds; None if it was not asked.
    vectors : dict of float [Q]
        What the selector needs of every client, by need.
    tags : frozenset of str
        Words that its owner gave it, for `fedcohort.selection.only` and `always`.
    agreement : float, optional
        How far the gradients of its samples agree, for advice.
    """

    name: str
    size: float | None = None
    vectors: Mapping[Need, NDArray[Any]] = dataclasses.field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    agreement: float | None = None


@dataclasses.dataclass(frozen=True)
class Limits:
    """How much a client may send before it is taken for nonsense.

    Attributes
    ----------
    profile_numbers : int
        The longest profile.
    largest_value : float
        The largest number in a profile or in a trained model.

    Examples
    --------
    >>> Limits(profile_numbers=4096).profile_numbers
    4096
    """

    profile_numbers: int = 1_000_000
    largest_value: float = 1e6


def numbers_of(size: int, agreement: float | None) -> dict[str, int | float]:
    """Return the numbers of an introduction, by the names they are sent under."""
    said: dict[str, int | float] = {SIZE: int(size)}
    return said if agreement is None else said | {AGREEMENT: float(agreement)}


def checked_vector(
    need: Need, vector: NDArray[Any], limits: Limits, expected: Mapping[Need, int]
) -> NDArray[Any]:
    """Return a client's vector in a precision that selectors take, or refuse it.

    `expected` has the length that vectors must have, where other clients have settled it.
    """
    what = f"its {need.value}"
    if vector.dtype.kind not in ("f" if need is Need.PROFILE else "fiu"):
        raise RefusedReplyError(f"{what} is of type {vector.dtype}")
    if vector.ndim != 1 or vector.size == 0:
        raise RefusedReplyError(f"{what} has shape {list(vector.shape)}, not [Q]")
    if vector.size > limits.profile_numbers:
        raise RefusedReplyError(
            f"{what} has {vector.size} numbers where {limits.profile_numbers} are allowed"
        )
    if vector.size != expected.get(need, vector.size):
        raise RefusedReplyError(
            f"{what} has {vector.size} numbers where the others have {expected[need]}"
        )
    check_values(vector, limits.largest_value, what)
    # Float16 would overflow in sums of squares; selectors take single or double precision.
    return vector.astype(np.float64 if vector.dtype.itemsize > 4 else np.float32)


def check_values(values: NDArray[Any], largest: float, what: str) -> None:
    """Refuse floats that are not finite or larger than `largest`."""
    if values.dtype.kind != "f" or values.size == 0:
        return
    # A sum is finite only if every value is, and needs no mask as large as the array.
    if not np.isfinite(np.sum(values, dtype=np.float64)):
        raise RefusedReplyError(f"{what} is not finite")
    if max(float(values.max()), -float(values.min())) > largest:
        raise RefusedReplyError(f"{what} has values beyond {largest:g}")


def checked_name(name: object) -> str:
    """Return a client's name if it is a short printable text."""
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or not name.isprintable():
        raise RefusedReplyError(f"its {CLIENT_ID} is not a short printable text")
    return name


def checked_tags(tags: object) -> frozenset[str]:
    """Return a client's tags if they are a few short printable texts."""
    if not isinstance(tags, list) or len(tags) > _MOST_TAGS:
        raise RefusedReplyError(f"its {TAGS} are not a short list")
    for tag in tags:
        if not isinstance(tag, str) or len(tag) > _LONGEST_NAME or not tag.isprintable():
            raise RefusedReplyError(f"one of its {TAGS} is not a short printable text")
    return frozenset(tags)


def checked_size(value: object) -> float:
    """Return a client's size if it is a number of samples."""
    size = finite(value)
    if size is None or not 0 < size <= _LARGEST_SIZE:
        raise RefusedReplyError(f"its {SIZE} is {value!r}, not a number of samples")
    return size


def checked_agreement(value: object) -> float | None:
    """Return a client's agreement of gradients if it is a number from 0 to 1; it may be missing."""
    agreement = finite(value)
    if value is not None and (agreement is None or not 0 <= agreement <= 1):
        raise RefusedReplyError(f"its {AGREEMENT} is {value!r}, not a number from 0 to 1")
    return agreement


def checked_loss(value: object, limits: Limits) -> float:
    """Return a client's loss if it is a finite number."""
    loss = finite(value)
    if loss is None or abs(loss) > limits.largest_value:
        raise RefusedReplyError(f"its loss is {value!r}, not a finite number")
    return loss


def finite(value: object) -> float | None:
    """Return a metric as a float if it is one finite number."""
    # NumPy's numbers are real ones too.
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond all floats
        return None
    return number if math.isfinite(number) else None
