"""One round: who was asked, what came back, and what the selector hears of it."""

import dataclasses
import time
from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord, Message

from fedcohort.adapters.introductions import SIZE
from fedcohort.adapters.rounds import CohortRound
from fedcohort.adapters.sizes import SizeLedger
from fedcohort.errors import RefusedReplyError
from fedcohort.flower.protocol import content_of
from fedcohort.flower.replies import ReplyReader, Update, alike

_TOO_MANY = "enough others were faster"


@dataclasses.dataclass(eq=False, kw_only=True)
class Round(CohortRound):
    """A round in progress.

    Attributes
    ----------
    wanted : int
        Usable updates after which it is over.
    arrays : ArrayRecord
        The global model that was sent.
    clients : dict of int
        The distinct clients that were asked, by node.
    reader : ReplyReader
        How replies are read.
    messages : list of Message
        The wrapped strategy's train messages.
    """

    wanted: int
    arrays: ArrayRecord
    clients: Mapping[int, int]
    reader: ReplyReader
    messages: list[Message] = dataclasses.field(default_factory=list)
    updates: dict[int, Update] = dataclasses.field(default_factory=dict)
    replies: list[Message] = dataclasses.field(default_factory=list)

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
        same, _ = alike(self.updates.values(), lambda update: update.reply.content)
        return len(same) >= self.wanted or answered >= len(self.clients)

    def hear(self, reply: Message) -> None:
        """Read a train reply once, however often it is handed over."""
        client = self.client_asked(reply.metadata.reply_to_message_id)
        if client is None or client in self.updates or client in self.failures:
            return
        self.replies.append(reply)
        seconds = time.monotonic() - self.began
        try:
            content_of(reply)  # refuses an error
            self.updates[client] = self.reader.update(client, reply, seconds, self.arrays)
        except RefusedReplyError as refusal:
            self.fail(client, str(refusal))

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

    def reweigh(
        self, used: Sequence[Update], size: Mapping[int, float], ledger: SizeLedger
    ) -> None:
        """Put what counts of the claimed sizes, or a selector's own weights, where sizes stand.

        `size` has the sizes that the selector knows, by client; `ledger` what clients claimed
        before.
        """
        key = self.reader.weight_key
        if key == SIZE:
            claims = {u.client: self.reader.weight(u.reply.content) for u in used}
            counted = ledger.in_training(claims)
            for update in used:
                if counted[update.client] < claims[update.client]:
                    self.reader.metrics(update.reply.content)[key] = counted[update.client]
        if (weight_of := self.own_weights(size)) is not None:
            least = 1e-12 * sum(weight_of.values())
            for update in used:
                metrics = self.reader.metrics(update.reply.content)
                # Strategies that take one update, such as Krum, divide by what it weighs.
                metrics[key] = max(weight_of[update.client], least)

    def own_weights(self, size: Mapping[int, float]) -> dict[int, float] | None:
        """Return what the selector has clients weigh, in samples; None where that is their size."""
        if self.by_size:
            return None
        ids, place = np.unique(self.cohort.ids, return_inverse=True)
        weights = np.bincount(place, self.cohort.weights)
        sizes = np.array([size[client] for client in ids.tolist()])
        return dict(zip(ids.tolist(), (weights * sizes.sum()).tolist(), strict=True))
