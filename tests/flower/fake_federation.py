"""A federation without a network: real ClientApps behind a Grid that delivers by a fake clock."""

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedcohort.flower import answer_queries

SUPERLINK = 1
NEVER = float("inf")


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += max(seconds, 1e-3)


@dataclasses.dataclass
class Node:
    """A SuperNode: an app, its context, and how it behaves."""

    app: ClientApp
    context: Context
    delay: Callable[[Message], float] = lambda _: 0.0


class FakeGrid(Grid):
    """Delivers messages to nodes of this process."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.nodes: dict[int, Node] = {}
        self.sent: list[Message] = []
        self.closed: set[int] = set()
        self._due: dict[str, tuple[float, Message]] = {}
        self._numbers = itertools.count()

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message {next(self._numbers)}"
            node = self.nodes.get(message.metadata.dst_node_id)
            delay = NEVER if node is None else node.delay(message)
            if message.metadata.dst_node_id in self.closed:
                continue
            self.sent.append(message)
            self._due[message.metadata.message_id] = (self.clock.now + delay, message)
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ready = [i for i in message_ids if i in self._due and self._due[i][0] <= self.clock.now]
        return [self._reply(self._due.pop(i)[1]) for i in ready]

    def send_and_receive(self, *_: Any, **__: Any) -> Iterable[Message]:
        raise AssertionError("CohortStrategy waits by itself")

    def kill(self, node: int) -> None:
        """Let a node vanish; the SuperLink answers in its place, a while later."""
        del self.nodes[node]
        for key, (_, message) in self._due.items():
            if message.metadata.dst_node_id == node:
                self._due[key] = (self.clock.now + 50, message)

    def _reply(self, message: Message) -> Message:
        node = self.nodes.get(message.metadata.dst_node_id)
        if node is None:
            reply = Message(Error(code=3, reason="Node unavailable"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = SUPERLINK
            return reply
        try:
            if message.has_content():
                # Over a network no two nodes share a record.
                message.content = copy.deepcopy(message.content)
            return node.app(message, node.context)
        except Exception as error:
            return Message(Error(code=1, reason=f"Traceback:\n  ...\n{error!r}"), reply_to=message)

    def recipients(self, kind: str) -> list[int]:
        """Return who was sent messages of a kind, in order."""
        return [m.metadata.dst_node_id for m in self.sent if m.metadata.message_type == kind]


def model(*values: float) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array(values or (0.0, 0.0, 0.0), np.float32))})


@dataclasses.dataclass
class Federation:
    """A grid, and an easy way to people it."""

    grid: FakeGrid
    clock: Clock
    rng: np.random.Generator = dataclasses.field(default_factory=lambda: np.random.default_rng(0))

    def profile_of(self, client: int) -> np.ndarray:
        return np.random.default_rng(client).normal(size=4).astype(np.float32)

    def add(
        self,
        client: int,
        *,
        node: int | None = None,
        profile: Any = None,
        answer: Callable[[Message], RecordDict] | None = None,
        train: Callable[[Message], RecordDict] | None = None,
        evaluate: Callable[[Message], RecordDict] | None = None,
        loss: Callable[..., float] | None = None,
        delay: Callable[[Message], float] = lambda _: 0.0,
        size: int | None = None,
        config: dict[str, Any] | None = None,
    ) -> int:
        """Connect a client; returns its node id, a random one as Flower's are."""
        app = ClientApp()
        vector = self.profile_of(client) if profile is None else profile
        held = size or 10 + client
        if answer is not None:
            app.query("profile")(lambda m, _: Message(answer(m), reply_to=m))
        else:
            answer_queries(
                app,
                size=lambda _: held,
                profile=lambda *_: vector,
                loss=loss,
                label_counts=lambda _: np.eye(5)[client % 5] * held,
            )
        app.train()(lambda m, _: Message((train or self.trainer(client, held))(m), reply_to=m))
        scores = evaluate or (
            lambda _: RecordDict({"m": MetricRecord({"num-examples": held, "accuracy": 0.5})})
        )
        app.evaluate()(lambda m, _: Message(scores(m), reply_to=m))
        number = node if node is not None else int(self.rng.integers(2**63, 2**64, dtype=np.uint64))
        context = Context(
            run_id=1,
            node_id=number,
            node_config={"partition-id": client} if config is None else config,
            state=RecordDict(),
            run_config={},
        )
        self.grid.nodes[number] = Node(app, context, delay)
        return number

    def trainer(self, client: int, size: int) -> Callable[[Message], RecordDict]:
        """Return the training of a client: it moves the model by (client, 1, 1)."""

        def train(message: Message) -> RecordDict:
            w = message.content["arrays"]["w"].numpy()
            moved = w + np.array([client, 1.0, 1.0], np.float32)
            return trained(moved, size, loss=1.0 / (1 + client))

        return train


def trained(w: np.ndarray, size: Any = 10, *, loss: float = 1.0, **metrics: Any) -> RecordDict:
    return RecordDict(
        {
            "arrays": ArrayRecord({"w": Array(np.asarray(w))}),
            "metrics": MetricRecord({"num-examples": size, "train_loss": loss, **metrics}),
        }
    )
