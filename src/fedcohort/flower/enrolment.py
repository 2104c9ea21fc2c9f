"""Who takes part: new nodes introduce themselves and join, clients that stay away are let go."""

import dataclasses
import time

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from fedcohort.adapters.admission import Admission
from fedcohort.adapters.introductions import Introduction, Limits
from fedcohort.adapters.members import Members
from fedcohort.adapters.sizes import SizeRule
from fedcohort.errors import RefusedReplyError, TooFewClientsError
from fedcohort.flower.log import log
from fedcohort.flower.mailbox import Letter, Mailbox, pause
from fedcohort.flower.protocol import PROFILE_QUERY, content_of, query_content, read_introduction
from fedcohort.selection import Need, Selector


@dataclasses.dataclass(frozen=True)
class Rules:
    """When a round may begin: settings of `CohortStrategy`, and what follows from them.

    Attributes
    ----------
    introduce : bool
        Whether new nodes are asked for a name, a size and what the selector needs.
    settle : float
        Seconds after which the first round begins with fewer than `min_clients`.
    """

    introduce: bool
    cohort: int
    min_cohort: int
    min_clients: int
    query_deadline: float
    patience: float
    settle: float
    forget_after: int | None
    limits: Limits


class Enrolment:
    """Turns Flower's nodes into the selector's clients, and waits until enough are there."""

    def __init__(self, selector: Selector, mailbox: Mailbox, rules: Rules, sizes: SizeRule) -> None:
        self.admission = Admission(selector, sizes, log, rules.cohort)
        self._selector = selector
        self._mailbox = mailbox
        self._rules = rules
        self._arrived: dict[int, Introduction] = {}
        self._claims: dict[int, Introduction] = {}
        self._asked: set[int] = set()
        self._unsent: set[int] = set()
        self._began = False
        self._complaint = ""

    @property
    def members(self) -> Members:
        """Who is known."""
        return self.admission.members

    def gather(self, grid: Grid, round_: int, model: ArrayRecord) -> list[int]:
        """Return the clients that can train now in round `round_`, waiting for enough of them.

        Profiles are measured with `model`, the same for early and late clients. Raises
        `TooFewClientsError` when there are fewer than the minimum cohort for longer than the
        patience.
        """
        start, first = time.monotonic(), not self._began
        rules = self._rules
        wanted = rules.min_clients if first else rules.min_cohort
        self._asked -= self._unsent
        self._unsent.clear()
        while True:
            connected = self._look(grid, model)
            elapsed = time.monotonic() - start
            # Where nobody said how many the first round waits for, it does not wait that long.
            late = elapsed >= (rules.settle if first else rules.patience)
            expecting = self._expecting()
            ready = self._ready(connected)
            here = len(self._arrived) + len(ready)
            # Those who come first are admitted together, so that their order is one of names and
            # not of network delays.
            if not first or late or (not expecting and here >= rules.min_clients):
                ready = self._ready(connected) if self._admit(connected) else ready
            hold = expecting and (first or len(ready) < rules.cohort)
            if len(ready) >= wanted and not hold:
                break
            if late and len(ready) >= rules.min_cohort:
                log.warning(
                    "Begins with %d clients instead of %d after waiting %g s.",
                    len(ready),
                    wanted,
                    elapsed,
                )
                break
            over = elapsed >= rules.patience
            if over or not expecting:
                self._complain(here, wanted, connected, over=over)
            pause(elapsed, rules.patience)
        self._began, self._complaint = True, ""
        self.members.see(self.members.at(connected), round_)
        self._let_go(round_)
        return ready

    def _complain(self, here: int, wanted: int, connected: set[int], *, over: bool) -> None:
        """Say at once what a round waits for; raise when waiting is over, or without a point."""
        rules, refusals = self._rules, self.admission.refusals
        reasons = self.admission.reasons()
        if len(refusals) >= max(rules.min_cohort, len(connected)):
            raise TooFewClientsError(
                f"All {len(connected)} connected nodes were refused: {reasons}. Mend the ClientApp;"
                " mods of the whole app (ClientApp(mods=[...])) that spoil replies belong to"
                " @app.train(mods=[...])."
            )
        left = f", {len(refusals)} were refused: {reasons}" if refusals else ""
        if over:
            raise TooFewClientsError(
                f"Only {here} of the {len(connected)} connected nodes could train after"
                f" {rules.patience:g} s, and a round needs {rules.min_cohort}{left}: start more"
                " SuperNodes, raise patience, or lower min_cohort."
            )
        complaint = f"{here} of the {len(connected)} connected nodes can train{left}"
        if complaint != self._complaint:
            self._complaint = complaint
            log.info("Waiting for %d clients: %s.", wanted, complaint)

    def idle_nodes(self, grid: Grid) -> list[int]:
        """Return the connected nodes that owe no answer."""
        busy = self._mailbox.busy
        return [node for node in grid.get_node_ids() if node not in busy]

    def hear(self, letter: Letter, reply: Message) -> None:
        """Take a node's introduction."""
        admission = self.admission
        try:
            self._arrived[letter.node] = read_introduction(
                content_of(reply), admission.wants, self._rules.limits, expected=admission.lengths
            )
        except RefusedReplyError as refusal:
            if admission.wants:
                admission.refuse(letter.node, str(refusal))
            else:
                log.warning(
                    "Node %d is known by its node id alone, with size 1: %s.", letter.node, refusal
                )
                self._arrived[letter.node] = Introduction("")

    # -- one look ---------------------------------------------------------------------------

    def _look(self, grid: Grid, model: ArrayRecord) -> set[int]:
        """Hear what has come, see who is connected, and greet new nodes."""
        self._mailbox.poll(grid)
        connected = set(grid.get_node_ids())
        self._mailbox.forget(connected)
        self._asked &= connected
        for node in self.admission.refusals.keys() - connected:
            del self.admission.refusals[node]
        for waiting in (self._arrived, self._claims):
            for node in waiting.keys() - connected:
                del waiting[node]
        strangers = sorted(
            node for node in connected - self._asked if self.members.client_at(node) is None
        )
        self._asked.update(strangers)
        if not self._rules.introduce:
            self._arrived.update((node, Introduction("")) for node in strangers)
        elif strangers:
            wants = self.admission.wants
            content = query_content(wants, model if Need.PROFILE in wants else None)
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
        here = self.members.at(connected - self._mailbox.busy)
        return sorted(self._selector.eligible(np.array(here, np.int64)).tolist())

    # -- joining and leaving ----------------------------------------------------------------

    def _admit(self, connected: set[int]) -> bool:
        """Let those in who have introduced themselves; returns whether anybody was waiting."""
        claimed, waiting = set(self._claims), {**self._claims, **self._arrived}
        self._arrived.clear()
        self._claims.clear()
        if waiting:
            self._claims.update(self.admission.admit(waiting, connected, claimed))  # type: ignore[arg-type]
        return bool(waiting)

    def _let_go(self, round_: int) -> None:
        if self._rules.forget_after is None:
            return
        gone = self.members.unseen_since(round_ - self._rules.forget_after)
        if gone:
            log.info(
                "%d clients left: not seen for %d rounds.", len(gone), self._rules.forget_after
            )
            self.admission.remove(gone)
