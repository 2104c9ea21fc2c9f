"""Grids that stand between a strategy and the real one, to decide what it sees and how it waits."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedcohort.errors import InvalidParameterError

# A strategy looks once to count its nodes and once to sample them; one that looks again and again
# is waiting for nodes that it will never see.
_LOOKS = 5


class GridProxy(Grid):
    """Passes everything on to another grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes to be seen."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        """Return what is known of the nodes to be seen."""
        seen = set(self.get_node_ids())
        return [node for node in self._grid.get_nodes() if node.node_id in seen]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have come."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies."""
        return self._grid.send_and_receive(messages, timeout=timeout)


class ChosenGrid(GridProxy):
    """Shows a strategy the nodes of one cohort and no others."""

    def __init__(self, grid: Grid, nodes: Sequence[int]) -> None:
        super().__init__(grid)
        self._nodes = list(nodes)
        self._looks = 0

    def get_node_ids(self) -> Iterable[int]:
        """Return the cohort's nodes."""
        self._looks += 1
        if self._looks > _LOOKS:
            raise InvalidParameterError(
                f"The wrapped strategy waits for more than the {len(self._nodes)} clients of this"
                " round's cohort: lower its min_train_nodes and min_available_nodes, or raise"
                " min_cohort."
            )
        return list(self._nodes)


class NobodyLeftError(Exception):
    """A strategy has waited long enough for nodes."""


class PatientGrid(GridProxy):
    """Shows a strategy the nodes that have nothing else to do, and ends its wait after a while."""

    def __init__(self, grid: Grid, nodes: Callable[[], Sequence[int]], patience: float) -> None:
        super().__init__(grid)
        self._nodes = nodes
        self._patience = patience
        self._since: float | None = None
        self._looks = 0

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes, or raise `NobodyLeftError` to a strategy that keeps looking."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        self._looks += 1
        if self._looks > _LOOKS and now - self._since > self._patience:
            raise NobodyLeftError
        return self._nodes()


class RoundGrid(GridProxy):
    """Hands the waiting for replies to somebody else."""

    def __init__(
        self,
        grid: Grid,
        exchange: Callable[[Grid, list[Message], float | None], list[Message]],
    ) -> None:
        super().__init__(grid)
        self._exchange = exchange

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies as the exchange sees fit."""
        return self._exchange(self._grid, list(messages), timeout)
