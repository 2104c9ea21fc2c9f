"""Which node of the engine speaks for which client."""

from collections.abc import Iterable, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

# Flower numbers its nodes, NVFlare names them.
Node = int | str


class Members:
    """The clients of a federation: their stable names, and the nodes they were last seen at.

    A client is known to the selector by a small whole number, to its owner by its name, and to
    the engine by a node that may change when it restarts.
    """

    def __init__(self) -> None:
        self._client_named: dict[str, int] = {}
        self._client_at: dict[Node, int] = {}
        self._names: dict[int, str] = {}
        self._nodes: dict[int, Node] = {}
        self._seen: dict[int, int] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._names)

    def name(self, client: int) -> str:
        """Return a client's name."""
        return self._names[client]

    def node(self, client: int) -> Node:
        """Return the node that speaks for a client."""
        return self._nodes[client]

    def client_named(self, name: str) -> int | None:
        """Return the client of that name, if there is one."""
        return self._client_named.get(name)

    def client_at(self, node: Node) -> int | None:
        """Return the client that a node speaks for, if it is known."""
        return self._client_at.get(node)

    def at(self, nodes: Iterable[Node]) -> list[int]:
        """Return the clients that these nodes speak for."""
        known = self._client_at
        return [known[node] for node in nodes if node in known]

    def add(self, name: str, node: Node) -> int:
        """Let a new client in and return its number."""
        client, self._next = self._next, self._next + 1
        self._client_named[name] = client
        self._names[client] = name
        self.move(client, node)
        return client

    def move(self, client: int, node: Node) -> None:
        """Let another node speak for a client."""
        if client in self._nodes:
            self._client_at.pop(self._nodes[client], None)
        self._nodes[client] = node
        self._client_at[node] = client

    def see(self, clients: Iterable[int], round_: int) -> None:
        """Note that clients are there in this round."""
        self._seen.update(dict.fromkeys(clients, round_))

    def unseen_since(self, round_: int) -> list[int]:
        """Return the clients that were last there before `round_`."""
        return [client for client in self._names if self._seen.get(client, round_) < round_]

    def remove(self, clients: Iterable[int]) -> None:
        """Forget clients."""
        for client in clients:
            del self._client_named[self._names.pop(client)]
            self._client_at.pop(self._nodes.pop(client), None)
            self._seen.pop(client, None)

    def save(self) -> dict[str, NDArray[Any]]:
        """Return all of it as plain arrays."""
        clients = list(self._names)
        nodes = [self._nodes[client] for client in clients]
        named = any(isinstance(node, str) for node in nodes)
        return {
            "next": np.array(self._next, np.int64),
            "client": np.array(clients, np.int64),
            "name": np.array([self._names[c] for c in clients], np.str_),
            "node": np.array(nodes, np.str_ if named else np.uint64),
            "seen": np.array([self._seen.get(c, 0) for c in clients], np.int64),
        }

    @classmethod
    def load(cls, saved: Mapping[str, NDArray[Any]]) -> Self:
        """Return the members that were saved."""
        members = cls()
        columns = (saved[name].tolist() for name in ("client", "name", "node", "seen"))
        for client, name, node, seen in zip(*columns, strict=True):
            members._client_named[name] = client
            members._names[client] = name
            members._seen[client] = seen
            members.move(client, node)
        members._next = int(saved["next"])
        return members
