"""Who takes part: new nodes introduce themselves and join, clients that stay away are let go."""

import dataclasses
import re
import time
from collections import Counter
from collections.abc import Mapping

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from fedcohort.errors import RefusedReplyError, TooFewClientsError
from fedcohort.flower.log import log, reason_of
from fedcohort.flower.mailbox import Letter, Mailbox, pause
from fedcohort.flower.members import Members
from fedcohort.flower.protocol import (
    PROFILE_QUERY,
    VECTOR_NEEDS,
    Introduction,
    Limits,
    query_content,
    read_introduction,
)
from fedcohort.selection import Need, Selector


@dataclasses.dataclass(frozen=True)
class Rules:
    """When a round may begin.

    Attributes
    ----------
    introduce : bool
        Whether new nodes are asked for a name, a size and what the selector needs.
    cohort, min_cohort : int
        Clients that a round wants, and how many it cannot begin without.
    min_clients : int
        Clients that the first round waits for.
    query_deadline : float
        Seconds that a round waits for introductions.
    patience : float
        Seconds that a round waits for clients in all.
    forget_after : int, optional
        Rounds after which a client that is gone is forgotten.
    limits : Limits
        What a client may send.
    """

    introduce: bool
    cohort: int
    min_cohort: int
    min_clients: int
    query_deadline: float
    patience: float
    forget_after: int | None
    limits: Limits


class Enrolment:
    """Turns Flower's nodes into the selector's clients, and waits until enough are there."""

    def __init__(self, selector: Selector, mailbox: Mailbox, rules: Rules) -> None:
        self.members = Members()
        self._selector = selector
        self._mailbox = mailbox
        self._rules = rules
        self._wants = [need for need in VECTOR_NEEDS if need in selector.needs]
        self._lengths: dict[Need, int] = {}
        self._arrived: dict[int, Introduction] = {}
        self._claims: dict[int, Introduction] = {}
        self._asked: set[int] = set()
        self._unsent: set[int] = set()
        self._began = False

    def restore(self, members: Members, lengths: Mapping[Need, int]) -> None:
        """Continue with the clients of an earlier server."""
        self.members = members
        self._lengths = dict(lengths)

    @property
    def lengths(self) -> Mapping[Need, int]:
        """The length of the vectors that all clients send, by need."""
        return self._lengths

    def gather(self, grid: Grid, round_: int, model: ArrayRecord) -> list[int]:
        """Return the clients that can train now, waiting for enough of them.

        Parameters
        ----------
        grid : Grid
            Where the nodes are.
        round_ : int
            The round that is about to begin.
        model : ArrayRecord
            The model that profiles are measured with, the same for early and late clients.

        Raises
        ------
        TooFewClientsError
            When there are fewer than the minimum cohort for longer than the patience.
        """
        start, first = time.monotonic(), not self._began
        rules = self._rules
        self._asked -= self._unsent
        self._unsent.clear()
        while True:
            connected = self._look(grid, model)
            elapsed = time.monotonic() - start
            late = elapsed >= rules.patience
            expecting = self._expecting()
            ready = self._ready(connected)
            here = len(self._arrived) + len(ready)
            # Those who come first are admitted together, so that their order is one of names and
            # not of network delays.
            if not first or late or (not expecting and here >= rules.min_clients):
                ready = self._ready(connected) if self._admit(connected) else ready
            enough = len(ready) >= (rules.min_clients if first else rules.min_cohort)
            hold = expecting and (first or len(ready) < rules.cohort)
            if enough and not hold:
                break
            if late:
                self._check_minimum(ready, connected)
                break
            pause(elapsed, rules.patience)
        self._began = True
        self.members.see(self.members.at(connected), round_)
        self._let_go(round_)
        return ready

    def idle_nodes(self, grid: Grid) -> list[int]:
        """Return the connected nodes that owe no answer."""
        busy = self._mailbox.busy
        return [node for node in grid.get_node_ids() if node not in busy]

    def hear(self, letter: Letter, reply: Message) -> None:
        """Take a node's introduction."""
        try:
            if reply.has_error():
                raise RefusedReplyError(reason_of(reply))
            self._arrived[letter.node] = read_introduction(
                reply.content, self._wants, self._rules.limits, expected=self._lengths
            )
        except RefusedReplyError as refusal:
            if self._wants:
                log.warning("Node %d is left out: %s.", letter.node, refusal)
            else:
                log.warning(
                    "Node %d is known by its node id alone, with size 1: %s.", letter.node, refusal
                )
                self._arrived[letter.node] = Introduction("", 1.0, {})

    # -- one look ---------------------------------------------------------------------------

    def _look(self, grid: Grid, model: ArrayRecord) -> set[int]:
        """Hear what has come, see who is connected, and greet new nodes."""
        self._mailbox.poll(grid)
        connected = set(grid.get_node_ids())
        self._mailbox.forget(connected)
        self._asked &= connected
        for waiting in (self._arrived, self._claims):
            for node in waiting.keys() - connected:
                del waiting[node]
        strangers = sorted(
            node for node in connected - self._asked if self.members.client_at(node) is None
        )
        self._asked.update(strangers)
        if not self._rules.introduce:
            self._arrived.update((node, Introduction("", 1.0, {})) for node in strangers)
        elif strangers:
            content = query_content(self._wants, model if Need.PROFILE in self._wants else None)
            letters = self._mailbox.send(
                grid, [Message(content, node, PROFILE_QUERY) for node in strangers]
            )
            self._unsent.update(set(strangers) - {letter.node for letter in letters})
        return connected

    def _expecting(self) -> bool:
        """Tell whether an introduction may still come in time."""
        since = time.monotonic() - self._rules.query_deadline
        return any(
            letter.kind == PROFILE_QUERY and letter.sent > since for letter in self._mailbox.letters
        )

    def _ready(self, connected: set[int]) -> list[int]:
        return sorted(self.members.at(connected - self._mailbox.busy))

    def _check_minimum(self, ready: list[int], connected: set[int]) -> None:
        rules = self._rules
        if len(ready) < rules.min_cohort:
            raise TooFewClientsError(
                f"Only {len(ready)} of the {len(connected)} connected nodes could train after"
                f" {rules.patience:g} s, and a round needs {rules.min_cohort}: start more"
                " SuperNodes, raise patience, or lower min_cohort."
            )
        log.warning(
            "Begins with %d clients instead of %d after waiting %g s.",
            len(ready),
            rules.min_clients,
            rules.patience,
        )

    # -- joining and leaving ----------------------------------------------------------------

    def _admit(self, connected: set[int]) -> bool:
        """Let those in who have introduced themselves, in the order of their names.

        Returns whether anybody was waiting.
        """
        claimed, waiting = set(self._claims), {**self._claims, **self._arrived}
        self._arrived.clear()
        self._claims.clear()
        if not waiting:
            return False
        self._settle_lengths(waiting)
        joining: list[Introduction] = []
        ids: list[int] = []
        for node in sorted(waiting, key=lambda node: _natural(_name(waiting[node], node))):
            introduction, name = waiting[node], _name(waiting[node], node)
            wrong = self._wrong_length(introduction)
            client = self.members.client_named(name)
            if wrong is not None:
                log.warning("Node %d is left out: %s.", node, wrong)
            elif client is None:
                ids.append(self.members.add(name, node, introduction.size))
                joining.append(introduction)
            elif self.members.node(client) not in connected:
                log.info("Client %r is back as node %d.", name, node)
                self.members.move(client, node)
            else:
                # Whoever holds the name keeps it while connected: else anybody could take it over.
                if node not in claimed:
                    log.info(
                        "Node %d waits to be client %r, which is connected as node %d.",
                        node,
                        name,
                        self.members.node(client),
                    )
                self._claims[node] = introduction
        if ids:
            self._join(ids, joining)
        return True

    def _join(self, ids: list[int], joining: list[Introduction]) -> None:
        columns = {
            need: np.stack([introduction.vectors[need] for introduction in joining])
            for need in self._wants
        }
        self._selector.join(
            np.array(ids, np.int64),
            columns.get(Need.PROFILE),
            sizes=[introduction.size for introduction in joining],
            label_counts=columns.get(Need.LABEL_COUNTS),
        )
        log.info("%d clients joined, %d in all.", len(ids), len(self.members))

    def _settle_lengths(self, waiting: Mapping[int, Introduction]) -> None:
        """Let the majority of the first clients decide how long a vector is."""
        for need in self._wants:
            if need not in self._lengths:
                votes = Counter(len(i.vectors[need]) for i in waiting.values())
                self._lengths[need] = votes.most_common(1)[0][0]

    def _wrong_length(self, introduction: Introduction) -> str | None:
        for need in self._wants:
            length, expected = len(introduction.vectors[need]), self._lengths[need]
            if length != expected:
                return f"its {need.value} has {length} numbers where the others have {expected}"
        return None

    def _let_go(self, round_: int) -> None:
        if self._rules.forget_after is None:
            return
        gone = self.members.unseen_since(round_ - self._rules.forget_after)
        if gone:
            log.info(
                "%d clients left: not seen for %d rounds.", len(gone), self._rules.forget_after
            )
            self._selector.leave(np.array(gone, np.int64))
            self.members.remove(gone)


def _name(introduction: Introduction, node: int) -> str:
    return introduction.name or f"node:{node}"


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Order names as a person would: 2 before 10, numbers before words."""
    return [
        (0, int(part), "") if part.isdecimal() else (1, 0, part)
        for part in re.split(r"(\d+)", name)
        if part
    ]
