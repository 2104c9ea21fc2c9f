"""Messages that are under way: who has not answered yet, and waiting that ends."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

_MOST_AT_ONCE = 1000
# Polls come often at first and then at a twentieth of the time already waited.
_SHORTEST_PAUSE, _LONGEST_PAUSE, _PAUSE_SHARE = 0.02, 1.0, 0.05

_Item = TypeVar("_Item")


@dataclasses.dataclass(frozen=True)
class Letter:
    """One message that was sent: Flower's id and type of it, who is to answer, and when it left.

    `sent` is by the monotonic clock.
    """

    message_id: str
    node: int
    kind: str
    sent: float


class Mailbox:
    """Sends messages and delivers the replies, also those that come rounds later.

    ``deliver(letter, reply)`` hears of every reply.
    """

    def __init__(self, deliver: Callable[[Letter, Message], None]) -> None:
        self._deliver = deliver
        self._open: dict[str, Letter] = {}

    @property
    def letters(self) -> Iterable[Letter]:
        """What has not been answered yet."""
        return self._open.values()

    @property
    def busy(self) -> set[int]:
        """The nodes that owe an answer."""
        return {letter.node for letter in self._open.values()}

    def send(self, grid: Grid, messages: Sequence[Message]) -> list[Letter]:
        """Send messages; those that Flower would not take are not among the letters returned."""
        taken = {i for part in _parts(messages) for i in grid.push_messages(part)}
        sent = time.monotonic()
        letters = [
            Letter(m.metadata.message_id, m.metadata.dst_node_id, m.metadata.message_type, sent)
            for m in messages
            if m.metadata.message_id in taken
        ]
        self._open.update((letter.message_id, letter) for letter in letters)
        return letters

    def poll(self, grid: Grid) -> None:
        """Deliver all replies that have come."""
        for part in _parts(list(self._open)):
            for reply in grid.pull_messages(part):
                # The reply of a dead node names the SuperLink as its source: only the message that
                # it answers says whose it is.
                letter = self._open.pop(reply.metadata.reply_to_message_id, None)
                if letter is not None:
                    self._deliver(letter, reply)

    def wait(self, grid: Grid, until: Callable[[], bool], limit: float) -> bool:
        """Deliver replies until `until` holds (True) or `limit` seconds have passed (False)."""
        start = time.monotonic()
        while True:
            self.poll(grid)
            if until():
                return True
            elapsed = time.monotonic() - start
            if elapsed >= limit:
                return False
            pause(elapsed, limit)

    def forget(self, connected: set[int]) -> None:
        """Expect nothing more of nodes that are gone."""
        gone = [key for key, letter in self._open.items() if letter.node not in connected]
        for key in gone:
            del self._open[key]


def _parts(items: Sequence[_Item]) -> list[Sequence[_Item]]:
    """Cut a sequence into parts that fit into one request to the SuperLink."""
    return [items[start : start + _MOST_AT_ONCE] for start in range(0, len(items), _MOST_AT_ONCE)]


def pause(elapsed: float, limit: float) -> None:
    """Sleep before the next poll, a short while at first, never beyond `limit`."""
    length = min(max(_SHORTEST_PAUSE, _PAUSE_SHARE * elapsed), _LONGEST_PAUSE)
    time.sleep(max(0.0, min(length, limit - elapsed)))
