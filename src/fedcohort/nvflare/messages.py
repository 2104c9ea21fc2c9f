"""What server and clients say to each other in NVFlare tasks, and how it is read.

    request  params  the model to profile or evaluate, as the job exchanges it
             meta    fedcohort: {"wants": list of "profile", "label_counts", "loss"}
    reply    params  profile: float [Q], label_counts: number [N], as wanted
             metrics num-examples: samples the client holds; loss: as wanted; agreement: of
                     gradients, 0 to 1, beside a profile, if it likes
             meta    fedcohort: {"tags": list of words}

A client's name is its NVFlare site name, which the server has from the client's certificate.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from fedcohort.adapters.introductions import (
    AGREEMENT,
    SIZE,
    TAGS,
    Introduction,
    Limits,
    check_values,
    checked_agreement,
    checked_loss,
    checked_name,
    checked_size,
    checked_tags,
    checked_vector,
    numbers_of,
)
from fedcohort.adapters.outcomes import is_learned
from fedcohort.errors import RefusedReplyError
from fedcohort.selection import Need

PROFILE_TASK = "fedcohort_profile"
LOSS_TASK = "fedcohort_loss"
QUERY_TASKS = (PROFILE_TASK, LOSS_TASK)

_META = "fedcohort"
_WANTS = "wants"

Params = Mapping[str, Any]


def query(wants: Iterable[Need], params: Params) -> FLModel:
    """Return a question, with the model to answer it with."""
    return FLModel(
        params_type=ParamsType.FULL,
        params=dict(params),
        meta={_META: {_WANTS: [need.value for need in wants]}},
    )


def wanted(request: FLModel) -> frozenset[Need]:
    """Return what a question asks for; words of a later version are ignored."""
    said = request.meta.get(_META)
    words = said.get(_WANTS, []) if isinstance(said, dict) else []
    return frozenset(need for need in Need if need.value in words)


def introduction(
    size: int,
    vectors: Mapping[Need, NDArray[Any]],
    tags: Iterable[str],
    agreement: float | None = None,
) -> FLModel:
    """Return a client's answer to the profile question."""
    return FLModel(
        params_type=ParamsType.FULL,
        params={need.value: vector for need, vector in vectors.items()},
        metrics=numbers_of(size, agreement),
        meta={_META: {TAGS: list(tags)}},
    )


def read_introduction(
    reply: FLModel, wants: Iterable[Need], limits: Limits, expected: Mapping[Need, int]
) -> Introduction:
    """Read a client's answer to the profile question, or raise `RefusedReplyError`."""
    params, metrics = _named(reply.params), reply.metrics or {}
    vectors: dict[Need, NDArray[Any]] = {}
    for need in wants:
        if need.value not in params:
            raise RefusedReplyError(f"its {need.value} is missing")
        vector = as_array(params[need.value], f"its {need.value}")
        vectors[need] = checked_vector(need, vector, limits, expected)
    said = reply.meta.get(_META)
    tags = said.get(TAGS, []) if isinstance(said, dict) else []
    return Introduction(
        checked_name(reply.meta.get("client_name", "")),
        checked_size(metrics.get(SIZE)),
        vectors,
        checked_tags(tags),
        checked_agreement(metrics.get(AGREEMENT)),
    )


def read_loss(reply: FLModel, limits: Limits) -> float:
    """Read a client's answer to the loss question, or raise `RefusedReplyError`."""
    return checked_loss((reply.metrics or {}).get(Need.LOSS.value), limits)


def read_change(
    reply: FLModel, sent: Params, limits: Limits, *, changes: bool
) -> NDArray[np.float32] | None:
    """Return what training changed [d], if `changes` are wanted, or raise `RefusedReplyError`.

    A reply that can be used holds the whole model afterwards, in the kind of arrays that was sent:
    NVFlare takes all results of a round for what the first one is.
    """
    params = _named(reply.params)
    if params.keys() != sent.keys():
        raise RefusedReplyError("its arrays have other names than those it was sent")
    differences = reply.params_type == ParamsType.DIFF
    parts: list[NDArray[Any]] = []
    whole: dict[str, Any] = {}
    for name, original in sent.items():
        what = f"its array {name!r}"
        values, before = as_array(params[name], what), array_of(original)
        if values.shape != before.shape:
            raise RefusedReplyError(
                f"{what} has shape {list(values.shape)} instead of {list(before.shape)}"
            )
        # Whole numbers have no limit, since they count; as weights they would be without any.
        if before.dtype.kind == "f" and values.dtype.kind != "f":
            raise RefusedReplyError(f"{what} is of type {values.dtype} instead of {before.dtype}")
        check_values(values, limits.largest_value, what)
        # Not of counts and statistics of batches: they would outweigh all that was learned.
        if changes and before.dtype.kind == "f" and is_learned(name):
            parts.append((values if differences else values - before).ravel())
        if differences:
            whole[name] = like(original, before + values)
        else:
            # What NVFlare keeps on disk stays there.
            whole[name] = params[name] if _on_disk(params[name]) else like(original, values)
    reply.params, reply.params_type = whole, ParamsType.FULL
    return np.concatenate(parts).astype(np.float32) if changes else None


def like(original: Any, values: NDArray[Any]) -> Any:
    """Return values as an array or a tensor of the type that the job exchanges.

    NVFlare's averages of whole numbers are floats, and clients send whole numbers again.
    """
    dtype = array_of(original).dtype
    if dtype.kind in "iub" and values.dtype.kind == "f":
        values = np.rint(values)
    # Of arrays without an axis, NumPy makes numbers.
    array = np.asarray(values, dtype)
    if not hasattr(original, "new_tensor"):
        return array
    import torch

    return torch.as_tensor(array, dtype=original.dtype)


def _named(params: object) -> Params:
    """Return what came as parameters if they are values by name, or nothing."""
    return params if isinstance(params, dict) else {}


def _on_disk(value: object) -> bool:
    """Tell whether a value is a tensor that NVFlare has left on disk."""
    return hasattr(value, "materialize")


def array_of(value: Any) -> NDArray[Any]:
    """Return an array or a tensor as NumPy sees it."""
    if _on_disk(value):
        value = value.materialize()
    try:
        return np.asarray(value)
    except TypeError:
        # NumPy has not all floats that PyTorch has.
        return np.asarray(value.float())


def as_array(value: object, what: str) -> NDArray[Any]:
    """Return what somebody else sent as NumPy sees it, if it holds numbers."""
    try:
        array = array_of(value)
    except Exception as error:
        # Whatever was sent decides how its conversion fails.
        raise RefusedReplyError(f"{what} is no array ({type(error).__name__})") from error
    if array.dtype.kind not in "fiub":
        raise RefusedReplyError(f"{what} is of type {array.dtype}")
    return array
