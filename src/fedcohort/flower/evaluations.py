"""What clients say of a model, made fit for the wrapped strategy to average."""

from collections.abc import Callable, Iterable

from flwr.app import Message

from fedcohort.adapters.introductions import SIZE
from fedcohort.errors import RefusedReplyError
from fedcohort.flower.log import log
from fedcohort.flower.protocol import content_of
from fedcohort.flower.replies import ReplyReader, alike
from fedcohort.selection import bounded_sizes


def usable_evaluations(
    replies: Iterable[Message],
    reader: ReplyReader,
    *,
    round_: int,
    place: Callable[[Message], int],
    largest: float | None,
) -> list[Message]:
    """Return the evaluations that can be averaged, in an order that arrival does not change.

    Parameters
    ----------
    replies : iterable of Message
        The evaluations.
    reader : ReplyReader
        Says what cannot be used.
    round_ : int
        Which round they are of, for the log.
    place : callable
        Whose a reply is, as a number to sort by.
    largest : float, optional
        How large a claim may be; see `bounded_sizes`.
    """
    usable: list[Message] = []
    for reply in replies:
        try:
            reader.metrics(content_of(reply))
            usable.append(reply)
        except RefusedReplyError as refusal:
            log.warning("An evaluation in round %d is left out: %s.", round_, refusal)
    same, others = alike(usable, lambda reply: reply.content)
    for _ in others:
        log.warning("An evaluation is left out: its metrics are not those of the others.")
    same.sort(key=place)
    if reader.weight_key == SIZE:
        _bound(same, reader, round_, largest)
    return same


def _bound(replies: list[Message], reader: ReplyReader, round_: int, largest: float | None) -> None:
    """Let nobody's claim of many samples outweigh the others' metrics."""
    claimed = [reader.weight(reply.content) for reply in replies]
    bounded = bounded_sizes(claimed, largest).tolist()
    for reply, claim, counted in zip(replies, claimed, bounded, strict=True):
        if counted < claim:
            reader.metrics(reply.content)[SIZE] = counted
            log.warning(
                "An evaluation in round %d claims %g samples, of which %g count.",
                round_,
                claim,
                counted,
            )
