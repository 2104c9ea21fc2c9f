"""Reading what clients send after training or evaluating: usable, or refused with one reason."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedcohort.adapters.introductions import Limits, check_values, finite
from fedcohort.adapters.outcomes import is_learned
from fedcohort.adapters.rounds import ClientUpdate
from fedcohort.errors import RefusedReplyError
from fedcohort.flower.arrays import read_array

_NUMBERS = "fiub"
_FLOATS = ("float", "bfloat")

_Item = TypeVar("_Item")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Update(ClientUpdate):
    """A usable reply from one client, with the reply itself for the wrapped strategy."""

    client: int
    reply: Message


@dataclasses.dataclass(frozen=True)
class ReplyReader:
    """Reads replies to train messages, and refuses what cannot be used.

    Attributes
    ----------
    weight_key : str
        The metric that the wrapped strategy weighs by.
    loss_keys : tuple of str
        Metrics that may hold the loss; the first that is there counts.
    changes : bool
        Whether the selector needs what training changed.
    check_arrays : bool
        Whether a reply must hold the arrays that were sent, in the same shapes.
    limits : Limits
        What a client may send.
    whole : frozenset of str
        Arrays of whole numbers, by the first model.
    """

    weight_key: str
    loss_keys: tuple[str, ...]
    changes: bool
    check_arrays: bool
    limits: Limits
    whole: frozenset[str] = frozenset()

    def update(self, client: int, reply: Message, seconds: float, sent: ArrayRecord) -> Update:
        """Read the reply to a train message, or raise `RefusedReplyError`."""
        metrics = self.metrics(reply.content)
        records = list(reply.content.array_records.values())
        if len(records) != 1:
            raise RefusedReplyError(f"it sent {len(records)} array records instead of one")
        change = None
        if self.check_arrays or self.changes:
            parts = self._checked(records[0], sent)
            change = _change(parts, sent, self.whole) if self.changes else None
        loss = next((finite(metrics[key]) for key in self.loss_keys if key in metrics), None)
        return Update(client=client, reply=reply, seconds=seconds, loss=loss, change=change)

    def metrics(self, content: RecordDict) -> MetricRecord:
        """Return the one metric record of a reply, with a weight that can be divided by."""
        records = list(content.metric_records.values())
        if len(records) != 1:
            raise RefusedReplyError(f"it sent {len(records)} metric records instead of one")
        claimed = finite(records[0].get(self.weight_key))
        if claimed is None or claimed <= 0:
            raise RefusedReplyError(
                f"its metric {self.weight_key!r} is {records[0].get(self.weight_key)!r}, not a"
                " number above 0"
            )
        return records[0]

    def weight(self, content: RecordDict) -> float:
        """Return what a reply claims to weigh."""
        return float(self.metrics(content)[self.weight_key])  # type: ignore[arg-type]

    def _checked(self, record: ArrayRecord, sent: ArrayRecord) -> dict[str, NDArray[Any]]:
        if record.keys() != sent.keys():
            raise RefusedReplyError("its arrays have other names than those it was sent")
        parts: dict[str, NDArray[Any]] = {}
        for name, original in sent.items():
            what = f"its array {name!r}"
            values = read_array(
                record[name],
                kinds=_NUMBERS,
                most_numbers=int(np.prod(original.shape, dtype=np.int64)),
                what=what,
            )
            if values.shape != tuple(original.shape):
                raise RefusedReplyError(
                    f"{what} has shape {list(values.shape)} instead of {list(original.shape)}"
                )
            # Whole numbers have no limit, since they count; as weights they would be without any.
            floats = original.dtype.startswith(_FLOATS) and name not in self.whole
            if values.dtype.kind != "f" and floats:
                raise RefusedReplyError(
                    f"{what} is of type {values.dtype} instead of {original.dtype}"
                )
            check_values(values, self.limits.largest_value, what)
            parts[name] = values
        return parts


def alike(
    items: Iterable[_Item], content: Callable[[_Item], RecordDict]
) -> tuple[list[_Item], list[_Item]]:
    """Split replies into those built as most are and the others; Flower's averages need one kind.

    ``content(item)`` is the content of the reply that an item holds. Both lists keep the order.
    """
    shapes = [(item, _shape(content(item))) for item in items]
    if not shapes:
        return [], []
    usual = Counter(shape for _, shape in shapes).most_common(1)[0][0]
    return (
        [item for item, shape in shapes if shape == usual],
        [item for item, shape in shapes if shape != usual],
    )


def _shape(content: RecordDict) -> tuple[Any, ...]:
    metrics = [
        (name, key, len(value) if isinstance(value, list) else 0)
        for name, record in content.metric_records.items()
        for key, value in record.items()
    ]
    arrays = [(name, key) for name, record in content.array_records.items() for key in record]
    return frozenset(metrics), frozenset(arrays)


def whole_of(first: ArrayRecord) -> frozenset[str]:
    """Name the arrays of whole numbers: averages make floats of them, clients whole ones again."""
    return frozenset(n for n, array in first.items() if not array.dtype.startswith(_FLOATS))


def _change(
    parts: dict[str, NDArray[Any]], sent: ArrayRecord, whole: frozenset[str]
) -> NDArray[np.float32]:
    # Not of counts and statistics of batches: they would outweigh all that was learned.
    flat: Sequence[NDArray[Any]] = [
        (values - sent[name].numpy()).ravel()
        for name, values in parts.items()
        if values.dtype.kind == "f" and name not in whole and is_learned(name)
    ]
    return np.concatenate(flat).astype(np.float32)
