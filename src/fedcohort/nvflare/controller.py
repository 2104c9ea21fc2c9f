"""The server's end: NVFlare workflows whose cohorts a selector chooses."""

import dataclasses
import json
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.workflows.fedavg import FedAvg

from fedcohort.adapters.admission import Admission, guarded, introduces
from fedcohort.adapters.checkpoint import Checkpoint
from fedcohort.adapters.introductions import Introduction, Limits, finite
from fedcohort.adapters.members import Node
from fedcohort.adapters.outcomes import fit_updates, loss_keys_of, tell
from fedcohort.adapters.rounds import ClientUpdate, RoundSummary, changes_of
from fedcohort.adapters.sizes import SizeRule
from fedcohort.errors import InvalidParameterError, RefusedReplyError, TooFewClientsError
from fedcohort.nvflare.messages import (
    LOSS_TASK,
    PROFILE_TASK,
    Params,
    array_of,
    like,
    query,
    read_change,
    read_introduction,
    read_loss,
)
from fedcohort.nvflare.rounds import SiteRound
from fedcohort.parameters import Check, Interval, OneOf, Optional, check_value
from fedcohort.randomness import generator
from fedcohort.selection import Cohort, Need, Selector, make_selector
from fedcohort.selection.asking import questions_of
from fedcohort.selection.sizes import GROWTH, LARGEST

log = logging.getLogger("fedcohort.nvflare")

# What happened in each round, one JSON object a line, in the job's run folder.
HISTORY = "cohorts.jsonl"

# What NVFlare weighs a result by.
_WEIGHT = FLMetaKey.NUM_STEPS_CURRENT_ROUND

_COUNT = Interval(1, integral=True)
_SECONDS = Interval(1, integral=True)


# What a job's settings are checked for when it is made.
_CHECKS: dict[str, Check] = {
    "num_clients": _COUNT,
    "seed": Interval(0, 2**63 - 1, integral=True),
    "deadline": _SECONDS,
    "query_deadline": _SECONDS,
    "min_cohort": _COUNT,
    "guard": OneOf("profiles", "off"),
    "largest_size": Optional(Interval(1)),
    "size_growth": Optional(Interval(1)),
}


class _AbortedError(Exception):
    """The job was ended while sites were asked."""


class CohortSelection:
    """Put before a workflow of NVFlare that calls `sample_clients`, it lets a selector choose.

    ``class CohortScaffold(CohortSelection, Scaffold): pass`` is all that another workflow needs.
    ``num_clients`` of the workflow is the size of the cohort, ``num_rounds`` counts the rounds of
    an earlier server too.

    Parameters
    ----------
    selector : str
        A spec such as ``"match"`` or ``"my_selector.py:MySelector"``.
    seed : int
        Decides every draw; the same seed, clients and answers give the same cohorts as the
        simulator.
    deadline : int
        Seconds that a round waits for training; later results are dropped.
    query_deadline : int
        Seconds that a round waits for answers to questions.
    min_cohort : int
        A round does not begin with fewer clients, and with fewer usable results the global model
        stays as it is.
    guard : {"profiles", "off"}
        Whether clients with extreme or copied profiles are left out; a guard that the selector's
        spec names has the last word.
    largest_size, size_growth : float, optional
        How far claimed sizes are believed (see `fedcohort.adapters.sizes.SizeRule`).
    checkpoint : str
        Where to save the model and the selector's state after every round, and where the next job
        resumes from; empty saves nothing.

    Attributes
    ----------
    history : list of RoundSummary
        The rounds of this job; they also stand in ``cohorts.jsonl`` in its run folder.

    Examples
    --------
    >>> from nvflare.app_common.workflows.scaffold import Scaffold
    >>> class CohortScaffold(CohortSelection, Scaffold): ...
    """

    def __init__(
        self,
        *args: Any,
        selector: str = "dp3s",
        seed: int = 0,
        deadline: int = 600,
        query_deadline: int = 60,
        min_cohort: int = 1,
        guard: str = "profiles",
        largest_size: float | None = LARGEST,
        size_growth: float | None = GROWTH,
        checkpoint: str = "",
        **kwargs: Any,
    ) -> None:
        # One client's error is no reason to end the job: `min_cohort` says how many are.
        super().__init__(*args, **{"ignore_result_error": True, **kwargs})
        # NVFlare writes a job's configuration from attributes of these names.
        self.selector = selector
        self.seed = seed
        self.deadline = deadline
        self.query_deadline = query_deadline
        self.min_cohort = min_cohort
        self.guard = guard
        self.largest_size = largest_size
        self.size_growth = size_growth
        self.checkpoint = checkpoint
        for name, check in _CHECKS.items():
            check_value(name, getattr(self, name), check, "CohortSelection")
        self._chooser: Selector = make_selector(selector)
        if min_cohort > self.num_clients:
            raise InvalidParameterError(
                f"min_cohort of CohortSelection is {min_cohort}, but a cohort (num_clients) has"
                f" {self.num_clients}: lower one or raise the other."
            )
        guarded(selector, self._chooser, guard)
        rule = SizeRule(largest_size, size_growth)
        self._admission = Admission(self._chooser, rule, log, self.num_clients)
        self._introduces = introduces(self._chooser)
        self._needs_updates = Need.UPDATE in self._chooser.needs
        self._limits = Limits()
        self.history: list[RoundSummary] = []
        self._first_model: dict[str, NDArray[Any]] = {}
        self._params: Params = {}
        self._round: SiteRound | None = None
        # What sites are told, to plan by; a job that resumes does the last of these alone.
        self._total_rounds = self.num_rounds
        # By client, and by name of sites that have not introduced themselves yet.
        self._misses: Counter[int | str] = Counter()
        self._away_until: dict[int | str, int] = {}

    # -- NVFlare's workflow interface ----------------------------------------------------------

    num_clients: int
    num_rounds: int
    start_round: int
    current_round: int
    engine: Any
    model: Any
    abort_signal: Any
    _task_check_period: float

    def run(self) -> None:
        """Run the rounds, from the first or from where `checkpoint` stands."""
        if self.model is not None and not isinstance(self.model, FLModel):
            self.model = FLModel(params_type=ParamsType.FULL, params=dict(self.model))
        if self.model is None:
            self.model = self.load_model()  # type: ignore[attr-defined]
        self._params = self.model.params
        self._first_model = {name: np.array(array_of(v)) for name, v in self._params.items()}
        arrays = self._first_model.items()
        fit_updates(self._chooser, {n: a.shape for n, a in arrays if a.dtype.kind == "f"})
        self._resume()
        try:
            super().run()  # type: ignore[misc]
        except _AbortedError:
            log.info("The job was aborted in round %d.", self.current_round + 1)
        if not self.num_rounds:
            # An earlier job has done them all, and NVFlare saves after rounds.
            self.save_model(self.model)  # type: ignore[attr-defined]

    def sample_clients(self, num_clients: int | None = None) -> list[str]:
        """Return the names of the round's cohort."""
        number = self.current_round + 1
        connected = {client.name for client in self.engine.get_clients()}
        self._introduce(connected, number)
        available = self._available(connected, number)
        rng = generator(self.seed, "selection", number)
        k = min(num_clients or len(available), len(available))
        for need, ids in questions_of(self._chooser, k, available, rng=rng):
            self._ask(number, need, ids)
        cohort = self._chooser.select(k, available, rng=rng)
        self._round = self._new_round(number, cohort)
        names = [str(self._admission.members.node(c)) for c in self._round.clients]
        log.info("Round %d trains %s.", number, ", ".join(names))
        return names

    def send_model(
        self,
        task_name: str = "train",
        data: FLModel | None = None,
        targets: list[str] | None = None,
        min_responses: int | None = None,
        timeout: int = 0,
        callback: Callable[[FLModel], Any] | None = None,
    ) -> None:
        """Send a task; a round's results are read first and refused if they cannot be used."""
        if self._round is None or data is None or callback is None:
            super().send_model(  # type: ignore[misc]
                task_name, data, targets, min_responses, timeout, callback=callback
            )
            return
        held: list[FLModel] = []
        # What a result weighs, the claims of the others decide too, unless the selector says it.
        by_claims = self._weighs_by_claims(self._round)
        take = held.append if by_claims else callback
        timeout = self._begin(data, timeout)

        def heard(result: FLModel) -> Any:
            return self._usable(result) and take(result)

        super().send_model(  # type: ignore[misc]
            task_name, data, targets, min_responses, timeout, callback=heard
        )
        if by_claims:
            self._wait()
            self._weigh_by_claims(held)
            for result in _in_order(held):
                try:
                    callback(result)
                except Exception as error:
                    # It may hold metrics that cannot be added; NVFlare goes on, too.
                    log.error(
                        "The result of %r cannot be added: %s.", result.meta["client_name"], error
                    )

    def send_model_and_wait(
        self,
        task_name: str = "train",
        data: FLModel | None = None,
        targets: list[str] | None = None,
        min_responses: int | None = None,
        timeout: int = 0,
    ) -> list[FLModel]:
        """Send a task and return the results, of a round those that can be used."""
        current = self._round
        if current is not None and data is not None:
            timeout = self._begin(data, timeout)
        results: list[FLModel] = super().send_model_and_wait(  # type: ignore[misc]
            task_name, data, targets, min_responses, timeout
        )
        if self.abort_signal.triggered:
            raise _AbortedError
        if current is None or data is None:
            return results
        usable = _in_order(result for result in results if self._usable(result))
        if self._weighs_by_claims(current):
            self._weigh_by_claims(usable)
        return usable

    def aggregate(
        self, results: list[FLModel], aggregate_fn: Callable[[list[FLModel]], FLModel] | None = None
    ) -> FLModel:
        """Average a round's results; too few of them come to nothing."""
        if self._round is not None and not self._round.makes_a_model:
            aggregate_fn = _nothing
        result: FLModel = super().aggregate(results, aggregate_fn)  # type: ignore[misc]
        return result

    def update_model(self, model: FLModel, aggr_result: FLModel) -> FLModel:
        """Close the round: tell the selector, and save where the server stands."""
        current, self._round = self._round, None
        assert current is not None
        current.close()
        if current.makes_a_model:
            averages = {
                name: like(model.params.get(name, average), array_of(average))
                for name, average in aggr_result.params.items()
            }
            # Of what is not averaged (`exclude_vars`), what was there stays.
            whole = aggr_result.params_type == ParamsType.FULL
            aggr_result.params = {**model.params, **averages} if whole else averages
            model = super().update_model(model, aggr_result)  # type: ignore[misc]
        outcome = current.outcome(current.clients, current.updates)
        tell(self._chooser, outcome, current.number, loss_keys_of(self._chooser), log)
        self._admission.name_suspects()
        self._note_absent(current)
        self._note(current.summary(sorted(current.updates)))
        self._params = model.params
        self._save(current.number, model.params)
        return model

    def _begin(self, data: FLModel, timeout: int) -> int:
        """Note what a round's sites are sent, and return how long they have."""
        self._params = data.params
        data.total_rounds = self._total_rounds
        return timeout or self.deadline

    def _wait(self) -> None:
        """Wait until no site is asked any more."""
        while self.get_num_standing_tasks():  # type: ignore[attr-defined]
            if self.abort_signal.triggered:
                raise _AbortedError
            time.sleep(self._task_check_period)

    # -- clients -------------------------------------------------------------------------------

    def _introduce(self, connected: set[str], number: int) -> None:
        """Ask sites that are new what the selector needs of everyone."""
        admission = self._admission
        for site in admission.refusals.keys() - connected:
            del admission.refusals[site]
        strangers = [s for s in self._strangers(connected) if self._away_until.get(s, 0) <= number]
        if not strangers:
            return
        arrived: dict[Node, Introduction] = {}
        if self._introduces:
            question = query(admission.wants, self._first_model)
            for reply in self._questioned(PROFILE_TASK, question, strangers):
                site = reply.meta["client_name"]
                try:
                    arrived[site] = read_introduction(
                        reply, admission.wants, self._limits, admission.lengths
                    )
                except RefusedReplyError as refusal:
                    admission.refuse(site, str(refusal))
            for site in strangers:
                if site not in arrived and site not in admission.refusals:
                    self._miss(site, number)
                    log.warning(
                        "Site %s did not answer the profile question: it is asked again in round"
                        " %d.",
                        site,
                        self._away_until[site],
                    )
        else:
            arrived = {site: Introduction(site) for site in strangers}
        admission.admit(arrived, connected)

    def _strangers(self, connected: set[str]) -> list[str]:
        """Return the sites that have not introduced themselves, and may yet."""
        return sorted(
            site
            for site in connected - self._admission.refusals.keys()
            if self._admission.members.client_at(site) is None
        )

    def _questioned(self, task: str, question: FLModel, sites: list[str]) -> list[FLModel]:
        """Send a question and return the answers that came in time."""
        # Not of a round: these are not results of training.
        asked, self._round = self._round, None
        try:
            return self.send_model_and_wait(task, question, sites, timeout=self.query_deadline)
        finally:
            self._round = asked

    def _available(self, connected: set[str], number: int) -> NDArray[np.int64]:
        """Return the clients that may be chosen; those that were silent lately only if need be."""
        here = np.array(sorted(self._admission.members.at(connected)), np.int64)
        there = self._chooser.eligible(here)
        back = np.array([self._away_until.get(c, 0) <= number for c in there.tolist()], bool)
        present = there[back] if len(there) else there
        if len(present) < self.min_cohort:
            present = there
        if len(present) < max(1, self.min_cohort):
            reasons = [self._admission.reasons()]
            if silent := self._strangers(connected):
                reasons.append(f"no answer to the profile question ({len(silent)})")
            said = "; ".join(filter(None, reasons)) or "none refused"
            raise TooFewClientsError(
                f"{len(present)} of the {len(connected)} connected sites can train, and a round"
                f" needs {max(1, self.min_cohort)} ({said}): mend the sites' executors, or lower"
                " min_cohort."
            )
        return present

    def _note_absent(self, current: SiteRound) -> None:
        """Leave silent clients out for longer each time, until they answer."""
        for client in current.clients:
            if client in current.updates:
                del self._misses[client]
            else:
                self._miss(client, current.number)

    def _miss(self, who: int | str, number: int) -> None:
        """Ask a client, or a site that is none yet, again 2, 4, 8, … rounds later."""
        self._misses[who] += 1
        self._away_until[who] = number + 2 ** min(self._misses[who], 6)

    # -- what selectors ask ----------------------------------------------------------------------

    def _ask(self, number: int, need: Need, ids: NDArray[np.int64]) -> None:
        sites = [str(self._admission.members.node(client)) for client in ids.tolist()]
        if need is Need.LOSS:
            self._ask_losses(sites)
        elif need is Need.UPDATE:
            self._round = self._new_round(number, Cohort(ids, np.full(len(ids), 1 / len(ids))))
            model = FLModel(
                params_type=ParamsType.FULL,
                params=dict(self._params),
                current_round=self.current_round,
            )
            self.send_model_and_wait(getattr(self, "task_name", "train"), model, sites)
            updates, self._round = self._round.updates, None
            if (changes := changes_of(list(updates.values()))) is not None:
                self._chooser.tell(Need.UPDATE, list(updates), changes)
        else:
            raise InvalidParameterError(
                f"Selector {self._chooser.name!r} asks for the {need.value} of clients before a"
                " round, which clients under NVFlare cannot answer: they answer losses and updates."
            )

    def _ask_losses(self, sites: list[str]) -> None:
        losses: dict[int, float] = {}
        for reply in self._questioned(LOSS_TASK, query([Need.LOSS], self._params), sites):
            client = self._admission.members.client_at(reply.meta["client_name"])
            try:
                if client is not None:
                    losses[client] = read_loss(reply, self._limits)
            except RefusedReplyError as refusal:
                log.warning(
                    "Client %r cannot tell its loss: %s.", reply.meta["client_name"], refusal
                )
        if losses:
            self._chooser.tell(Need.LOSS, list(losses), list(losses.values()))

    # -- results -----------------------------------------------------------------------------------

    def _new_round(self, number: int, cohort: Cohort) -> SiteRound:
        return SiteRound(
            number=number,
            cohort=cohort,
            name=self._admission.members.name,
            log=log,
            least=self.min_cohort,
        )

    def _usable(self, result: FLModel) -> bool:
        """Read one result of the round, set what it weighs, and tell if it is to be averaged."""
        current = self._round
        client = self._admission.members.client_at(result.meta.get("client_name", ""))
        if current is None or client is None or client not in current.clients:
            return False
        try:
            change = read_change(result, self._params, self._limits, changes=self._needs_updates)
            metrics = result.metrics or {}
            keys = loss_keys_of(self._chooser)
            loss = next((finite(metrics[key]) for key in keys if key in metrics), None)
            weight = current.weight(client)
            if not self._weighs_by_claims(current):
                result.meta[_WEIGHT] = weight
            seconds = time.monotonic() - current.began
            current.updates[client] = ClientUpdate(seconds=seconds, loss=loss, change=change)
        except RefusedReplyError as refusal:
            current.fail(client, str(refusal))
            return False
        # NVFlare takes a weight of 0 for 1.
        return weight > 0

    def _weighs_by_claims(self, current: SiteRound) -> bool:
        """Tell whether results weigh what sites claim: sizes that no selector was told."""
        return current.by_size and not self._introduces

    def _weigh_by_claims(self, results: list[FLModel]) -> None:
        """Set what results weigh by the steps that clients claim, all of them together.

        They are what NVFlare weighs by itself, and count within the rule for sizes.
        """
        clients = self._admission.members.at(result.meta["client_name"] for result in results)
        steps = [finite(result.meta.get(_WEIGHT)) for result in results]
        claims = {c: n for c, n in zip(clients, steps, strict=True) if n is not None and n > 0}
        counted = self._admission.sizes.in_training(claims)
        for client, result in zip(clients, results, strict=True):
            result.meta[_WEIGHT] = counted.get(client, 1.0)

    # -- history and saving ------------------------------------------------------------------------

    def _note(self, summary: RoundSummary) -> None:
        self.history.append(summary)
        folder = Path(self.get_run_dir())  # type: ignore[attr-defined]
        with (folder / HISTORY).open("a", encoding="utf-8") as file:
            file.write(json.dumps(dataclasses.asdict(summary)) + "\n")

    def _save(self, number: int, params: Params) -> None:
        if not self.checkpoint:
            return
        parts = self._admission.save()
        model = {name: array_of(values) for name, values in params.items()}
        Checkpoint(number, self._chooser.name, model, self._first_model, parts).save(
            Path(self.checkpoint)
        )

    def _resume(self) -> None:
        saved = Checkpoint.load(Path(self.checkpoint)) if self.checkpoint else None
        if saved is None:
            return
        shapes = {name: values.shape for name, values in self._first_model.items()}
        saved.check(self._chooser.name, shapes, Path(self.checkpoint))
        self._admission.load(saved.parts)
        self._first_model = saved.first_model
        self.model.params = {
            name: like(self._params[name], values) for name, values in saved.model.items()
        }
        self._params = self.model.params
        end = self.start_round + self.num_rounds
        self.start_round = saved.round
        self.num_rounds = max(0, end - saved.round)
        log.info("Resumed after round %d with %d clients.", saved.round, len(self._chooser.clients))


def _in_order(results: Iterable[FLModel]) -> list[FLModel]:
    """Return results by site, so that sums do not depend on who was first."""
    return sorted(results, key=lambda result: str(result.meta["client_name"]))


def _nothing(_: list[FLModel]) -> FLModel:
    """Return what comes of results that are too few.

    Whatever a workflow looks for in it, such as Scaffold's control variates, is empty.
    """
    meta: defaultdict[str, Any] = defaultdict(dict, nr_aggregated=0)
    return FLModel(params={}, meta=meta)


class CohortFedAvg(CohortSelection, FedAvg):  # type: ignore[misc]
    """NVFlare's FedAvg whose cohorts a selector chooses; parameters of both.

    Examples
    --------
    >>> workflow = CohortFedAvg(num_clients=10, num_rounds=50, selector="match")
    """
