"""One round: who was asked, what came back, and what the selector hears of it."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord, Message
from numpy.typing import NDArray

from fedcohort.adapters.history import RoundSummary
from fedcohort.adapters.introductions import SIZE
from fedcohort.adapters.sizes import SizeLedger
from fedcohort.errors import RefusedReplyError
from fedcohort.flower.log import log, reason_of
from fedcohort.flower.replies import ReplyReader, Update, alike
from fedcohort.selection import Cohort, Outcome

_TOO_MANY = "enough others were faster"


@dataclasses.dataclass(eq=False)
class Round:
    """A round in progress.

    Attributes
    ----------
    number : int
        Its number, from 1.
    cohort : Cohort
        What the selector chose.
    wanted : int
        Usable updates after which it is over.
    arrays : ArrayRecord
        The global model that was sent.
    messages : list of Message
        The wrapped strategy's train messages.
    clients : dict of int
        The distinct clients that were asked, by node.
    reader : ReplyReader
        How replies are read.
    name : callable
        ``name(client)``: a client's name.
    """

    number: int
    cohort: Cohort
    wanted: int
    arrays: ArrayRecord
    messages: list[Message]
    clients: Mapping[int, int]
    reader: ReplyReader
    name: Callable[[int], str]
    updates: dict[int, Update] = dataclasses.field(default_factory=dict)
    failures: dict[int, str] = dataclasses.field(default_factory=dict)
    replies: list[Message] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.began = time.monotonic()

    def client_asked(self, message_id: str) -> int | None:
        """Return the client that a message of this round went to."""
        for message in self.messages:
            if message.metadata.message_id == message_id:
                return self.clients.get(message.metadata.dst_node_id)
        return None

    @property
    def over(self) -> bool:
        """Whether enough have answered, or all."""
        answered = len(self.updates) + len(self.failures)
        return len(self.updates) >= self.wanted or answered >= len(self.clients)

    def hear(self, reply: Message) -> None:
        """Read a train reply once, however often it is handed over."""
        client = self.client_asked(reply.metadata.reply_to_message_id)
        if client is None or client in self.updates or client in self.failures:
            return
        self.replies.append(reply)
        seconds = time.monotonic() - self.began
        try:
            if reply.has_error():
                raise RefusedReplyError(reason_of(reply))
            self.updates[client] = self.reader.update(client, reply, seconds, self.arrays)
        except RefusedReplyError as refusal:
            self.fail(client, str(refusal))

    def fail(self, client: int, reason: str) -> None:
        """Leave a client out, and say why."""
        self.failures[client] = reason
        log.warning(
            "Client %r is left out of round %d: %s.", self.name(client), self.number, reason
        )

    def finish(self) -> list[Update]:
        """Return the updates to use, the first that came, in the order of the clients."""
        same, others = alike(self.updates.values(), lambda update: update.reply.content)
        for update in others:
            self.fail(update.client, "its metrics are not those of the others")
        used = sorted(same[: self.wanted], key=lambda update: update.client)
        known = {update.client for update in used} | self.failures.keys()
        for client in self.clients.values():
            if client in known:
                continue
            if len(used) >= self.wanted:
                self.failures[client] = _TOO_MANY
            else:
                self.fail(client, "it did not answer in time")
        return used

    def outcome(self, used: Sequence[Update]) -> Outcome:
        """Return what the selector hears of the round."""
        by_client = {update.client: update for update in used}
        ids = sorted(self.clients.values())
        found = [by_client.get(client) for client in ids]
        return Outcome(
            np.array(ids, np.int64),
            np.array([update is not None for update in found], np.bool_),
            np.array([np.nan if u is None or u.loss is None else u.loss for u in found]),
            changes_of(found),
            np.array([np.nan if u is None else u.seconds for u in found]),
        )

    def reweigh(
        self, used: Sequence[Update], size: Mapping[int, float], ledger: SizeLedger
    ) -> None:
        """Put what counts of the claimed sizes, or a selector's own weights, where sizes stand.

        Parameters
        ----------
        used : sequence of Update
            The updates of the round.
        size : dict of float
            The sizes that the selector knows, by client.
        ledger : SizeLedger
            What clients claimed before.
        """
        key = self.reader.weight_key
        if key == SIZE:
            claims = {u.client: self.reader.weight(u.reply.content) for u in used}
            counted = ledger.in_training(claims)
            for update in used:
                if counted[update.client] < claims[update.client]:
                    self.reader.metrics(update.reply.content)[key] = counted[update.client]
        ids, place = np.unique(self.cohort.ids, return_inverse=True)
        weights = np.bincount(place, self.cohort.weights)
        sizes = np.array([size[client] for client in ids.tolist()])
        if np.allclose(weights, sizes / sizes.sum()):
            return
        weight_of = dict(zip(ids.tolist(), (weights * sizes.sum()).tolist(), strict=True))
        for update in used:
            metrics = self.reader.metrics(update.reply.content)
            metrics[key] = weight_of[update.client]

    def summary(self, used: Sequence[Update]) -> RoundSummary:
        """Return what happened, by name."""
        return self.summary_of([update.client for update in used])

    def summary_of(self, trained: Sequence[int]) -> RoundSummary:
        """Return what happened, if these clients trained."""
        return RoundSummary(
            self.number,
            tuple(self.name(client) for client in self.cohort.ids.tolist()),
            tuple(self.name(client) for client in trained),
            {self.name(client): reason for client, reason in self.failures.items()},
        )


def changes_of(updates: Sequence[Update | None]) -> NDArray[np.float32] | None:
    """Return what training changed [m, d], NaN where nothing came."""
    changes = [None if update is None else update.change for update in updates]
    known = [change for change in changes if change is not None]
    if not known:
        return None
    nothing = np.full(len(known[0]), np.nan, np.float32)
    return np.stack([nothing if change is None else change for change in changes])
