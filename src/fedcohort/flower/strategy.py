"""The server's end: a Flower strategy that chooses the cohort for another one."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from fedcohort.adapters.admission import guarded, introduces
from fedcohort.adapters.checkpoint import Checkpoint
from fedcohort.adapters.introductions import SIZE, Limits
from fedcohort.adapters.outcomes import fit_updates, loss_keys_of, tell
from fedcohort.adapters.rounds import RoundSummary, changes_of
from fedcohort.adapters.sizes import SizeRule
from fedcohort.errors import InvalidInputError, InvalidParameterError, RefusedReplyError
from fedcohort.flower.enrolment import Enrolment, Rules
from fedcohort.flower.evaluations import usable_evaluations
from fedcohort.flower.grids import ChosenGrid, NobodyLeftError, PatientGrid, RoundGrid
from fedcohort.flower.log import log
from fedcohort.flower.mailbox import Letter, Mailbox
from fedcohort.flower.protocol import (
    LOSS_QUERY,
    PROFILE_QUERY,
    content_of,
    query_content,
    read_loss,
)
from fedcohort.flower.replies import ReplyReader, whole_of
from fedcohort.flower.rounds import Round
from fedcohort.flower.secure import MaskedRound, SecureAggregation
from fedcohort.flower.starting import own_start, quiet_until, woven
from fedcohort.flower.state import arrays_of, record_of, restore_strategy, strategy_state
from fedcohort.parameters import Interval, OneOf, Optional, check_parameters, parameter
from fedcohort.randomness import generator
from fedcohort.selection import Cohort, Need, Outcome, Selector, make_selector
from fedcohort.selection.asking import questions_of
from fedcohort.selection.sizes import GROWTH, LARGEST

_COUNT = Interval(1, integral=True)
_SECONDS = Interval(0, closed="neither")
_FLOWERS_TIMEOUT = 3600.0


@dataclasses.dataclass(eq=False)
class CohortStrategy(Strategy):
    """Any Flower strategy, with a fedcohort selector deciding who trains.

    The wrapped strategy is shown the chosen nodes and no others, so it keeps its own messages and
    its own aggregation. Its ``fraction_train`` must be 1.

    Parameters
    ----------
    inner : flwr.serverapp.strategy.Strategy
        The strategy to wrap: FedAvg, FedAdam, Krum, ...
    selector : str or Selector
        A spec such as ``"dp3s"`` or ``"match:guard=profiles"``, or a selector made with
        `fedcohort.make_selector`.
    cohort : int
        Clients whose updates a round uses.
    seed : int
        Decides every draw; the same seed, clients and answers give the same cohorts as the
        simulator.
    spare : int
        Clients to ask beyond `cohort`; the first `cohort` usable answers are used.
    deadline : float, optional
        Seconds that a round waits for training (and for evaluation); later answers are dropped.
        By default the ``timeout`` of `start`.
    min_cohort : int, optional
        A round does not begin with fewer clients, and with fewer usable updates the global model
        stays as it is; by default as many as `inner` needs.
    min_clients : int, optional
        Clients that the first round waits for; by default `cohort`.
    patience : float
        Seconds to wait for clients before a round; then it begins with those that are there, or
        `TooFewClientsError` is raised if they are fewer than `min_cohort`.
    query_deadline : float
        Seconds that a round waits for answers to queries.
    forget_after : int, optional
        Rounds after which a client that is gone loses its profile and history; never by default.
    identify : bool
        Whether clients are asked for their stable names even if the selector needs nothing of them.
    guard : {"profiles", "off"}
        Whether clients with extreme or copied profiles are left out (see
        `fedcohort.selection.guard`); a guard that the selector's spec names has the last word.
    largest_size : float, optional
        A client's size counts up to so many times the upper quartile of the others' sizes; None
        believes every claim.
    size_growth : float, optional
        A size claimed in training counts up to so many times the one that counted on joining;
        None believes every claim.
    evaluate_on : {"connected", "cohort"}
        Whom the wrapped strategy sees for evaluation: all nodes that are not busy, or those of the
        round's cohort.
    loss_keys : tuple of str, optional
        Metrics of train replies that may hold the loss that the selector hears; the first that is
        there counts. If None, ``train_loss`` or ``loss`` for the mean loss seen in training, and
        ``received_loss`` for that of the model the client received (`Selector.reported_loss`).
    secure : SecureAggregation, optional
        Hides single updates from the server; for selectors that need profiles or nothing.
    check_arrays : bool
        Whether a train reply must hold the arrays that were sent, in the same shapes; switch it
        off for strategies whose models grow, such as XGBoost's.
    limits : Limits
        How much a client may send before it is taken for nonsense.
    checkpoint : path, optional
        Where to save the global model and the selector's state after every round, and where
        `start` resumes from.

    Attributes
    ----------
    history : list of RoundSummary
        The rounds so far.

    Examples
    --------
    >>> from flwr.serverapp.strategy import FedAvg
    >>> strategy = CohortStrategy(FedAvg(), selector="match", cohort=10)
    """

    inner: Strategy
    selector: str | Selector = "dp3s"
    _: dataclasses.KW_ONLY
    cohort: int = parameter(10, _COUNT)
    seed: int = parameter(0, Interval(0, 2**63 - 1, integral=True))
    spare: int = parameter(0, Interval(0, integral=True))
    deadline: float | None = parameter(None, Optional(_SECONDS))
    min_cohort: int | None = parameter(None, Optional(_COUNT))
    min_clients: int | None = parameter(None, Optional(_COUNT))
    patience: float = parameter(600.0, _SECONDS)
    query_deadline: float = parameter(60.0, _SECONDS)
    forget_after: int | None = parameter(None, Optional(_COUNT))
    identify: bool = parameter(False, OneOf(False, True))
    guard: str = parameter("profiles", OneOf("profiles", "off"))
    largest_size: float | None = parameter(LARGEST, Optional(Interval(1)))
    size_growth: float | None = parameter(GROWTH, Optional(Interval(1)))
    evaluate_on: str = parameter("connected", OneOf("connected", "cohort"))
    loss_keys: tuple[str, ...] | None = None
    secure: SecureAggregation | None = None
    check_arrays: bool = parameter(True, OneOf(False, True))
    limits: Limits = dataclasses.field(default_factory=Limits)
    checkpoint: str | Path | None = None

    def __post_init__(self) -> None:
        check_parameters(self, "CohortStrategy")
        _check_strategy(self.inner)
        self._selector = _as_selector(self.selector)
        guarded(self.selector, self._selector, self.guard)
        weight_key = str(_of(self.inner, "weighted_by_key", SIZE))
        if self.secure is not None:
            self.secure.check(self._selector, weight_key)
        self._least = self._minimum()
        self.history: list[RoundSummary] = []
        self._mailbox = Mailbox(self._deliver)
        at_most = self.patience if self.min_clients else self.query_deadline
        self._enrolment = Enrolment(
            self._selector,
            self._mailbox,
            Rules(
                introduce=self.identify or introduces(self._selector),
                cohort=self.cohort,
                min_cohort=self._least,
                min_clients=self.min_clients or self.cohort,
                query_deadline=self.query_deadline,
                patience=self.patience,
                settle=min(self.patience, at_most),
                forget_after=self.forget_after,
                limits=self.limits,
            ),
            SizeRule(self.largest_size, self.size_growth),
        )
        self._reader = ReplyReader(
            weight_key=weight_key,
            loss_keys=tuple(self.loss_keys or loss_keys_of(self._selector)),
            changes=Need.UPDATE in self._selector.needs,
            check_arrays=self.check_arrays,
            limits=self.limits,
        )
        self._done = 0
        self._timeout = _FLOWERS_TIMEOUT
        self._first_model: ArrayRecord | None = None
        self._round: Round | None = None
        self._losses: dict[int, float] = {}
        self._mute: set[int] = set()
        self._masked: MaskedRound | None = None
        self._evaluating: set[str] = set()
        self._evaluations: list[Message] = []

    def _minimum(self) -> int:
        """Return the smallest cohort, and check that the wrapped strategy can work with it."""
        name = type(self.inner).__name__
        if _of(self.inner, "fraction_train", 1.0) != 1.0:
            raise InvalidParameterError(
                f"fraction_train of {name} must be 1, since CohortStrategy decides how many train:"
                " leave it out."
            )
        needed = max(
            int(_of(self.inner, "min_train_nodes", 1)),
            int(_of(self.inner, "min_available_nodes", 1)),
        )
        least = needed if self.min_cohort is None else self.min_cohort
        # A selector that repeats clients may fill all places with one.
        smallest = 1 if self._selector.repeats else least
        if needed > smallest or least > self.cohort:
            raise InvalidParameterError(
                f"{name} waits for {needed} nodes, but a cohort of selector"
                f" {self._selector.name!r} may have {min(smallest, self.cohort)}: lower"
                f" min_train_nodes and min_available_nodes of {name} to that, or raise cohort and"
                " min_cohort."
            )
        evaluators = int(_of(self.inner, "min_evaluate_nodes", 1))
        wanted = self.evaluate_on == "cohort" and _of(self.inner, "fraction_evaluate", 1.0) > 0
        if wanted and evaluators > self.cohort:
            raise InvalidParameterError(
                f"{name} waits for {evaluators} nodes to evaluate, and evaluate_on='cohort' gives"
                f" it {self.cohort}: lower min_evaluate_nodes of {name}, or raise cohort."
            )
        self._needed = needed
        return least

    # -- Flower's strategy interface ---------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | None = _FLOWERS_TIMEOUT,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        **more: Any,
    ) -> Result:
        """Run the rounds, from the first or from where `checkpoint` stands.

        Parameters and result are those of Flower's ``Strategy.start``, and `more` those that a
        wrapped strategy's own has; rounds keep their numbers when a server resumes, and
        `num_rounds` counts those of the earlier server too.
        """
        arrays = self._resume(initial_arrays)
        self._timeout = math.inf if timeout is None else timeout

        def evaluate(round_: int, model: ArrayRecord) -> MetricRecord | None:
            passed = round_ < self._done
            return None if passed or evaluate_fn is None else evaluate_fn(round_, model)

        start = woven(self.inner, self).start if own_start(self.inner) else super().start
        with quiet_until(self._done + 1):
            result = start(
                grid=RoundGrid(grid, self._exchange),
                initial_arrays=arrays,
                num_rounds=num_rounds,
                timeout=timeout,  # type: ignore[arg-type]  # Flower's grids take None, too
                train_config=train_config,
                evaluate_config=evaluate_config,
                evaluate_fn=None if evaluate_fn is None else evaluate,
                **more,
            )
        if self._done and isinstance(result, Result):
            result.arrays = result.arrays or arrays
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the cohort and let the wrapped strategy address it."""
        if server_round <= self._done:
            return []
        number = server_round
        if self._first_model is None:
            self._first_model = arrays
        first = self._first_model
        self._reader = dataclasses.replace(self._reader, whole=whole_of(first))
        floats = {n: tuple(a.shape) for n, a in first.items() if n not in self._reader.whole}
        fit_updates(self._selector, floats)
        available = np.array(self._enrolment.gather(grid, number, self._first_model), np.int64)
        rng = generator(self.seed, "selection", number)
        k = min(self.cohort + self.spare, len(available))
        for need, ids in questions_of(self._selector, k, available, rng=rng):
            self._ask(grid, self._new_round(number, ids, arrays), need, config)
        available = self._without_busy(available)
        cohort = self._selector.select(min(k, len(available)), available, rng=rng)
        current = self._new_round(number, cohort, arrays)
        messages = self._address(grid, current, config)
        if self.secure is not None:
            weights = current.own_weights(self._sizes())
            nodes = current.clients.items()
            of_node = None if weights is None else {node: weights[c] for node, c in nodes}
            self._masked = self.secure.train(grid, number, messages, of_node)
            messages = []
        self._round = current
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Hand the usable updates to the wrapped strategy and tell the selector."""
        if server_round <= self._done:
            return None, None
        current = self._round
        if current is None or current.number != server_round:
            raise InvalidInputError(f"Round {server_round} is aggregated before it was configured.")
        self._round = None
        if self._masked is not None:
            return self._aggregate_masked(current, self._masked)
        for reply in replies:
            current.hear(reply)
        updates = current.finish()
        used = {update.client: update for update in updates}
        outcome = current.outcome(sorted(current.clients.values()), used)
        tell(self._selector, outcome, server_round, self._reader.loss_keys, log)
        self._enrolment.admission.name_suspects()
        self.history.append(current.summary(list(used)))
        arrays, metrics = None, None
        least = min(self._least, current.wanted)
        if current.can_average(used, least):
            current.reweigh(updates, self._sizes(), self._enrolment.admission.sizes)
            arrays, metrics = self.inner.aggregate_train(
                current.number, [update.reply for update in updates]
            )
        self._save(current, arrays)
        return arrays, metrics

    def _sizes(self) -> dict[int, float]:
        """Return the sizes that the selector knows, by client."""
        known = self._selector
        return dict(zip(known.clients.tolist(), known.sizes.tolist(), strict=True))

    def _aggregate_masked(
        self, current: Round, masked: MaskedRound
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Hand the average of a round under secure aggregation to the wrapped strategy."""
        self._masked = None
        for node, client in current.clients.items():
            if node not in masked.nodes:
                current.fail(client, "it did not stay to the end of secure aggregation")
        trained = [client for node, client in current.clients.items() if node in masked.nodes]
        ids = np.array(sorted(current.clients.values()), np.int64)
        self._selector.observe(Outcome(ids, np.isin(ids, trained)))
        self.history.append(current.summary(trained))
        arrays: ArrayRecord | None = None
        metrics: MetricRecord | None = None
        if masked.arrays is None:
            reason = (
                f"its usable updates ({len(trained)}) weigh nothing beside the others"
                if masked.nodes
                else "secure aggregation did not end"
            )
            log.warning("Round %d is dropped: %s.", current.number, reason)
        elif current.can_average(trained, min(self._least, current.wanted)):
            arrays, metrics = self.inner.aggregate_train(current.number, [masked.reply()])
        self._save(current, arrays)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the wrapped strategy address nodes that are not busy, if there are enough."""
        if server_round <= self._done:
            return []
        idle = PatientGrid(grid, lambda: self._nodes_to_evaluate(grid), self.patience)
        try:
            return list(self.inner.configure_evaluate(server_round, arrays, config, idle))
        except NobodyLeftError:
            log.warning(
                "Evaluation of round %d is left out: too few nodes for %g s.",
                server_round,
                self.patience,
            )
            return []

    def _nodes_to_evaluate(self, grid: Grid) -> list[int]:
        # Whoever has answered meanwhile is free.
        self._mailbox.poll(grid)
        idle = self._enrolment.idle_nodes(grid)
        if self.evaluate_on == "connected":
            return idle
        members = self._enrolment.members
        chosen = set(self.history[-1].cohort) if self.history else set()
        return [
            n
            for n, c in zip(idle, map(members.client_at, idle), strict=True)
            if c is not None and members.name(c) in chosen
        ]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Hand the usable evaluations to the wrapped strategy."""
        usable = usable_evaluations(
            replies,
            self._reader,
            round_=server_round,
            place=self._place,
            largest=self.largest_size,
        )
        return self.inner.aggregate_evaluate(server_round, usable) if usable else None

    def _place(self, reply: Message) -> int:
        node = reply.metadata.src_node_id
        client = self._enrolment.members.client_at(node)
        return node if client is None else client

    def summary(self) -> None:
        """Log the settings, then those of the wrapped strategy."""
        needs = ", ".join(sorted(need.value for need in self._selector.needs)) or "nothing"
        log.info("\t├──> Cohorts of %d by selector %r:", self.cohort, self._selector.name)
        log.info("\t│\t├── Spare clients: %d | Minimum: %d", self.spare, self._least)
        log.info("\t│\t├── Asked of clients: %s", needs)
        log.info("\t│\t├── Rounds done by an earlier server: %d", self._done)
        log.info("\t│\t└── Wrapped strategy: %s", type(self.inner).__name__)
        self.inner.summary()

    # -- messages ----------------------------------------------------------------------------

    def _exchange(
        self, grid: Grid, messages: list[Message], timeout: float | None
    ) -> list[Message]:
        """Send a round's messages and wait for enough replies, or for the deadline."""
        limit = self._timeout if self.deadline is None else self.deadline
        if timeout not in (None, self._timeout):
            # One of its own, as the messages of secure aggregation have.
            limit = min(limit, timeout)
        current = self._round
        if current is not None and messages:
            current.began = time.monotonic()
            taken = {letter.node for letter in self._mailbox.send(grid, messages)}
            for node in current.clients.keys() - taken:
                current.fail(current.clients[node], "Flower did not take its message")
            self._mailbox.wait(grid, lambda: current.over, limit)
            return current.replies
        self._evaluations = []
        self._evaluating = {letter.message_id for letter in self._mailbox.send(grid, messages)}
        self._mailbox.wait(grid, lambda: len(self._evaluations) >= len(self._evaluating), limit)
        self._evaluating = set()
        return self._evaluations

    def _deliver(self, letter: Letter, reply: Message) -> None:
        current = self._round
        if letter.kind == PROFILE_QUERY:
            self._enrolment.hear(letter, reply)
        elif letter.kind == LOSS_QUERY:
            self._hear_loss(letter, reply)
        elif current is not None and current.client_asked(letter.message_id) is not None:
            current.hear(reply)
        elif letter.message_id in self._evaluating:
            self._evaluations.append(reply)
        else:
            client = self._enrolment.members.client_at(letter.node)
            log.info("Client %s answered %r too late: not used.", self._who(client), letter.kind)

    # -- rounds ------------------------------------------------------------------------------

    def _new_round(
        self, number: int, chosen: Cohort | NDArray[np.int64], arrays: ArrayRecord
    ) -> Round:
        """Return a round for a cohort, or for the clients that the selector has questions for."""
        members = self._enrolment.members
        if not isinstance(chosen, Cohort):
            chosen = Cohort(chosen, np.full(len(chosen), 1 / len(chosen)))
        clients = {int(members.node(c)): int(c) for c in np.unique(chosen.ids)}
        return Round(
            number=number,
            cohort=chosen,
            wanted=min(self.cohort, len(clients)),
            arrays=arrays,
            clients=clients,
            reader=self._reader,
            name=members.name,
            log=log,
        )

    def _address(self, grid: Grid, current: Round, config: ConfigRecord) -> list[Message]:
        """Let the wrapped strategy write the messages of a round."""
        seen = ChosenGrid(grid, list(current.clients))
        current.messages = list(
            self.inner.configure_train(current.number, current.arrays, config, seen)
        )
        # Some strategies, such as FedXgbCyclic, address only a part of the nodes they see.
        asked = {message.metadata.dst_node_id for message in current.messages}
        current.clients = {n: client for n, client in current.clients.items() if n in asked}
        current.wanted = min(current.wanted, len(asked))
        return current.messages

    def _without_busy(self, available: NDArray[np.int64]) -> NDArray[np.int64]:
        """Leave out clients that still owe an answer to a query, if enough others remain."""
        busy = self._enrolment.members.at(self._mailbox.busy)
        free = available[~np.isin(available, busy)] if busy else available
        return free if len(free) >= self._least else available

    # -- what selectors ask ------------------------------------------------------------------

    def _ask(self, grid: Grid, asked: Round, need: Need, config: ConfigRecord) -> None:
        """Ask clients what the selector must hear before it chooses."""
        if need is Need.LOSS:
            self._ask_losses(grid, asked)
        elif need is Need.UPDATE:
            self._ask_updates(grid, asked, config)
        else:
            raise InvalidParameterError(
                f"Selector {self._selector.name!r} asks for the {need.value} of clients before a"
                " round, which clients under Flower cannot answer: they answer losses and updates."
            )

    def _ask_losses(self, grid: Grid, asked: Round) -> None:
        content = query_content([Need.LOSS], asked.arrays)
        self._losses = {}
        nodes = [node for node in asked.clients if node not in self._mute]
        letters = self._mailbox.send(grid, [Message(content, node, LOSS_QUERY) for node in nodes])
        mine = {letter.message_id for letter in letters}
        self._mailbox.wait(
            grid,
            lambda: mine.isdisjoint(letter.message_id for letter in self._mailbox.letters),
            self.query_deadline,
        )
        if self._losses:
            self._selector.tell(Need.LOSS, list(self._losses), list(self._losses.values()))

    def _ask_updates(self, grid: Grid, asked: Round, config: ConfigRecord) -> None:
        """Let clients train for the selector's eyes only; nothing is aggregated."""
        if len(asked.clients) < self._needed:
            return
        asked.wanted = len(asked.clients)
        self._round = asked
        self._exchange(grid, self._address(grid, asked, config), None)
        self._round = None
        updates = list(asked.updates.values())
        changes = changes_of(updates)
        if changes is not None:
            self._selector.tell(Need.UPDATE, [update.client for update in updates], changes)

    def _hear_loss(self, letter: Letter, reply: Message) -> None:
        client = self._enrolment.members.client_at(letter.node)
        if client is None:
            return
        try:
            self._losses[client] = read_loss(content_of(reply), self.limits)
        except RefusedReplyError as refusal:
            self._mute.add(letter.node)
            log.warning("Client %s cannot tell its loss: %s.", self._who(client), refusal)

    def _who(self, client: int | None) -> str:
        return (
            "of an unknown node" if client is None else repr(self._enrolment.members.name(client))
        )

    # -- saving ------------------------------------------------------------------------------

    def _save(self, current: Round, arrays: ArrayRecord | None) -> None:
        """Save where the server stands; after a round that was dropped, with the model it sent."""
        if self.checkpoint is None:
            return
        assert self._first_model is not None
        model = arrays_of(current.arrays if arrays is None else arrays)
        first = arrays_of(self._first_model)
        parts = self._enrolment.admission.save() | {"strategy": strategy_state(self.inner)}
        Checkpoint(current.number, self._selector.name, model, first, parts).save(
            Path(self.checkpoint)
        )

    def _resume(self, initial: ArrayRecord) -> ArrayRecord:
        """Return the model to start from, and bring everything back if there is a checkpoint."""
        path = None if self.checkpoint is None else Path(self.checkpoint)
        saved = None if path is None else Checkpoint.load(path)
        if saved is None or path is None:
            return initial
        shapes = {name: tuple(array.shape) for name, array in initial.items()}
        saved.check(self._selector.name, shapes, path)
        self._enrolment.admission.load(saved.parts)
        restore_strategy(self.inner, saved.parts["strategy"])
        self._first_model = record_of(saved.first_model)
        self._done = saved.round
        log.info(
            "Resumed after round %d with %d clients.", saved.round, len(self._selector.clients)
        )
        return record_of(saved.model)


def _check_strategy(inner: object) -> None:
    if isinstance(inner, Strategy):
        return
    kind = type(inner)
    if kind.__module__.startswith("flwr.server.strategy") or hasattr(inner, "configure_fit"):
        raise InvalidParameterError(
            f"{kind.__name__} is of Flower's older interface (flwr.server.strategy), which"
            " CohortStrategy cannot wrap: use the one of flwr.serverapp.strategy, and"
            " @app.main() in the ServerApp."
        )
    raise InvalidParameterError(
        f"CohortStrategy wraps a strategy of flwr.serverapp.strategy, not {kind.__name__}."
    )


def _as_selector(selector: str | Selector) -> Selector:
    made = make_selector(selector) if isinstance(selector, str) else selector
    if len(made.clients):
        raise InvalidInputError(
            f"Selector {made.name!r} has clients already: give CohortStrategy a fresh one, clients"
            " join as they connect."
        )
    return made


def _of(strategy: Any, name: str, default: Any) -> Any:
    """Return a setting of a strategy, or of the one it wraps, as Flower's wrappers do."""
    while strategy is not None:
        if hasattr(strategy, name):
            return getattr(strategy, name)
        strategy = getattr(strategy, "strategy", None)
    return default
