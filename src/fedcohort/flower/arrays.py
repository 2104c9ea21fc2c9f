"""Reading arrays that somebody else sent: everything is checked before memory is spent on it."""

import io
import math
from typing import Any

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray

from fedcohort.errors import RefusedReplyError

_NUMPY = "numpy.ndarray"


def read_array(
    array: Array, *, kinds: str, most_numbers: int, what: str = "an array"
) -> NDArray[Any]:
    """Return the values of a Flower `Array`, without pickle and without trusting its header.

    The NumPy `kinds` of numbers to accept are letters, such as ``"f"`` for floats; `what` names the
    array in the message of the `RefusedReplyError` that is raised when its bytes are not what they
    claim to be, or too many. The result is a read-only view of the received bytes.
    """
    if array.stype != _NUMPY:
        raise RefusedReplyError(f"{what} is stored as {array.stype!r}, not as {_NUMPY!r}")
    stream = io.BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, in_columns, dtype = np.lib.format.read_array_header_1_0(stream)
        else:
            shape, in_columns, dtype = np.lib.format.read_array_header_2_0(stream)
    except Exception as error:
        # NumPy parses the header with several tools, each with errors of its own.
        raise RefusedReplyError(f"{what} has a damaged header ({error})") from error
    count = math.prod(shape)
    if dtype.kind not in kinds or dtype.hasobject:
        raise RefusedReplyError(f"{what} is of type {dtype}")
    if count > most_numbers:
        raise RefusedReplyError(f"{what} has {count} numbers where {most_numbers} are allowed")
    if len(array.data) - stream.tell() != count * dtype.itemsize:
        raise RefusedReplyError(f"{what} has not as many bytes as its shape {list(shape)} needs")
    flat: NDArray[Any] = np.frombuffer(array.data, dtype, count, offset=stream.tell())
    return flat.reshape(shape, order="F" if in_columns else "C")
