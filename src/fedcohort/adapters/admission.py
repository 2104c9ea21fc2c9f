"""Letting nodes in: from introductions to clients of the selector, in an order that is theirs."""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.adapters.introductions import VECTOR_NEEDS, Introduction
from fedcohort.adapters.members import Members, Node
from fedcohort.adapters.sizes import SizeLedger, SizeRule
from fedcohort.advice import advise
from fedcohort.selection import Need, Selector
from fedcohort.selection.guard import ProfileSelector
from fedcohort.specs import parse_spec


class Admission:
    """Turns introductions into clients of a selector.

    Parameters
    ----------
    selector : Selector
        Whose clients they become.
    rule : SizeRule
        How far claimed sizes are believed.
    log : logging.Logger
        Where the engine logs; one line per event.
    cohort : int
        Clients that a round wants, which the advice on the first ones is about.

    Attributes
    ----------
    members : Members
        Who is known.
    sizes : SizeLedger
        What counts of the sizes they claim.
    lengths : dict of int
        The length of the vectors that all clients send, by need.
    refusals : dict of str
        Why nodes were refused, by node.
    """

    def __init__(
        self, selector: Selector, rule: SizeRule, log: logging.Logger, cohort: int
    ) -> None:
        self.members = Members()
        self.sizes = SizeLedger(rule, lambda client: self.members.name(client), log)
        self.lengths: dict[Need, int] = {}
        self.refusals: dict[Node, str] = {}
        self.wants = [need for need in VECTOR_NEEDS if need in selector.needs]
        self._selector = selector
        self._log = log
        self._cohort = cohort
        self._suspected: set[int] = set()

    def refuse(self, node: Node, reason: str) -> None:
        """Leave a node out, and say why."""
        self.refusals[node] = reason
        self._log.warning("Node %s is left out: %s.", node, reason)

    def admit(
        self,
        waiting: Mapping[Node, Introduction],
        connected: Set[Node],
        claimed: Set[Node] = frozenset(),
    ) -> dict[Node, Introduction]:
        """Let those in who have introduced themselves, in the order of their names.

        Returns those whose name belongs to another node that is `connected`; the nodes in `claimed`
        were told that before.
        """
        self._settle_lengths(waiting)
        joining: dict[int, Introduction] = {}
        taken: dict[Node, Introduction] = {}
        for node in sorted(waiting, key=lambda node: _natural(_name(waiting[node], node))):
            introduction, name = waiting[node], _name(waiting[node], node)
            wrong = self._wrong_length(introduction)
            client = self.members.client_named(name)
            if wrong is not None:
                self.refuse(node, wrong)
            elif client is None:
                joining[self.members.add(name, node)] = introduction
            elif self.members.node(client) not in connected:
                self._log.info("Client %r is back as node %s.", name, node)
                self.members.move(client, node)
                self._label(client, introduction)
            else:
                # Whoever holds the name keeps it while connected: else anybody could take it over.
                if node not in claimed:
                    self._log.info(
                        "Node %s waits to be client %r, which is connected as node %s.",
                        node,
                        name,
                        self.members.node(client),
                    )
                taken[node] = introduction
        if joining:
            self._join(joining)
        return taken

    def reasons(self) -> str:
        """Say what nodes were refused for most often."""
        counts = Counter(self.refusals.values()).most_common(3)
        return "; ".join(f"{reason} ({count})" for reason, count in counts)

    def save(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the selector's state and who is known, as parts of a checkpoint."""
        return {
            "selector": self._selector.state(),
            "members": self.members.save(),
            "sizes": self.sizes.save(),
            "lengths": {need.value: np.array(length) for need, length in self.lengths.items()},
        }

    def load(self, parts: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
        """Continue with what was saved."""
        self._selector.restore(parts["selector"])
        self.members = Members.load(parts["members"])
        self.sizes.load(parts["sizes"])
        self.lengths = {Need(name): int(length) for name, length in parts["lengths"].items()}

    def remove(self, clients: Iterable[int]) -> None:
        """Let clients go."""
        gone = list(clients)
        self._selector.leave(np.array(gone, np.int64))
        self.members.remove(gone)
        self.sizes.remove(gone)
        self._suspected.difference_update(gone)

    def _join(self, joining: Mapping[int, Introduction]) -> None:
        ids = np.array(list(joining), np.int64)
        columns = {
            need: np.stack([introduction.vectors[need] for introduction in joining.values()])
            for need in self.wants
        }
        claims = {c: said.size for c, said in joining.items() if said.size is not None}
        self.sizes.claim(claims)
        counted = dict(zip(claims, self.sizes.counted(claims).tolist(), strict=True))
        sizes = np.array([counted.get(client, 1.0) for client in joining])
        self._selector.join(
            ids,
            columns.get(Need.PROFILE),
            sizes=sizes,
            label_counts=columns.get(Need.LABEL_COUNTS),
        )
        for client, said in joining.items():
            self._label(client, said)
        if claims:
            # All sizes are measured against those of the newcomers too.
            known = [c for c in self._selector.clients.tolist() if self.sizes.knows(c)]
            self._selector.resize(np.array(known, np.int64), self.sizes.counted(known))
        self._log.info("%d clients joined, %d in all.", len(ids), len(self.members))
        self.name_suspects()
        if Need.PROFILE in columns and len(ids) == len(self.members):
            trusted = ~np.isin(ids, list(self._suspected))
            if trusted.sum() > self._cohort:
                told = [said.agreement for said in joining.values()]
                advice = advise(
                    columns[Need.PROFILE][trusted],
                    sizes[trusted],
                    self._cohort,
                    agreements=None if None in told else np.array(told)[trusted],
                )
                self._log.info("%s", advice.line)

    def _label(self, client: int, said: Introduction) -> None:
        """Tell the selector what a client is called now."""
        tags = (f"tag:{tag}" for tag in said.tags)
        self._selector.label(client, {self.members.name(client), *tags})

    def name_suspects(self) -> None:
        """Log whom the guard leaves out, once each."""
        reasons = self._selector.suspects
        fresh = sorted(reasons.keys() - self._suspected)
        self._suspected.update(fresh)
        if fresh:
            self._log.warning(
                "The guard leaves out %s: guard='off' lets them in.",
                ", ".join(f"{self.members.name(c)!r} ({reasons[c]})" for c in fresh),
            )

    def _settle_lengths(self, waiting: Mapping[Node, Introduction]) -> None:
        """Let the majority of the first clients decide how long a vector is."""
        for need in self.wants:
            if need not in self.lengths and waiting:
                votes = Counter(len(i.vectors[need]) for i in waiting.values())
                self.lengths[need] = votes.most_common(1)[0][0]

    def _wrong_length(self, introduction: Introduction) -> str | None:
        for need in self.wants:
            length, expected = len(introduction.vectors[need]), self.lengths[need]
            if length != expected:
                return f"its {need.value} has {length} numbers where the others have {expected}"
        return None


def introduces(selector: Selector) -> bool:
    """Tell whether clients are asked anything before a selector can choose them."""
    return selector.needs_labels or bool(selector.needs - {Need.DURATION})


def guarded(selector: str | Selector, made: Selector, guard: str) -> None:
    """Turn the guard of a selector on, as federations have it unless told otherwise.

    `selector` is what the user gave, where a spec that names a guard has the last word, and `made`
    the selector that it became.
    """
    spoken = isinstance(selector, str) and "guard" in parse_spec(selector)[1]
    innermost = made.innermost
    if guard == "profiles" and not spoken and isinstance(innermost, ProfileSelector):
        innermost.guard = guard if innermost.guard == "off" else innermost.guard


def _name(introduction: Introduction, node: Node) -> str:
    return introduction.name or f"node:{node}"


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Order names as a person would: 2 before 10, numbers before words."""
    return [
        (0, int(part), "") if part.isdecimal() else (1, 0, part)
        for part in re.split(r"(\d+)", name)
        if part
    ]
