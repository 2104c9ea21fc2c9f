"""What the runs of a store come to: one summary a selector and setting, over its seeds."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedcohort.metrics import (
    RoundsInterval,
    bootstrap_interval,
    participation_variation,
    rounds_to_target,
)
from fedcohort.randomness import generator
from fedcohort.report.comparison import Comparison, compare, holm
from fedcohort.report.grouping import Group, group_runs
from fedcohort.report.served import Served, WorstClass, served_by, worst_class
from fedcohort.simulation.config import SETTINGS, RunConfig
from fedcohort.simulation.scores import Part, Target, score_column, score_of
from fedcohort.simulation.store_file import damaged

if TYPE_CHECKING:
    from fedcohort.simulation.store import RoundRecord, Store

_RESAMPLES = 2000
# How much of what is missing to the best score, 1, a model must have gained to have learned.
_LEARNED = 0.1

FloatArray = npt.NDArray[np.float64]

# One target for all runs, or each run's own by its key; None leaves out what is about a target. A
# plain number is a training score.
Targets = float | Target | Mapping[str, Target] | None


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """A score over the evaluated rounds.

    Attributes
    ----------
    seeds : float64 array, shape [S, T]
        Of every seed; NaN where it has none, as one that diverged. That reaches no target.
    mean, low, high : float64 array, shape [T]
        Over the seeds, and the 2.5 % and 97.5 % points of the mean by bootstrap over them; NaN
        where a seed has none.
    """

    seeds: FloatArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray

    @property
    def known(self) -> bool:
        """Whether some seed ever has a score."""
        return not bool(np.isnan(self.seeds).all())

    @property
    def last(self) -> float | None:
        """The last of the means, if all seeds have a last score."""
        return None if np.isnan(self.mean[-1]) else float(self.mean[-1])


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Summary:
    """What one selector came to in one setting, over its seeds.

    Only rounds that all seeds have are counted, so an unfinished study can be looked at.

    Attributes
    ----------
    label, selector, dataset, skew, panel : str
        How the group is called; groups of one panel are comparable.
    config : RunConfig
        Of the first seed; the others differ in the seed alone.
    seeds : tuple of int
        Those that have at least one round.
    unfinished : int
        How many of them are not finished.
    rounds : int
        Rounds that all seeds have.
    evaluated_rounds : int64 array, shape [T]
        Those among them, and round 0, after which models are evaluated.
    score : str
        What the models are judged by: ``accuracy``, ``F1``, ``AUROC`` or ``R²``.
    train, test : Curve
        That score; `test` is None where no seed ever has one, as without a test part.
    test_perplexity : float or None
        Of next tokens: exp of the last test loss, mean over seeds; None if one has none.
    gemd, gemd_sd : float or None
        Mean over rounds and seeds, and the standard deviation of single rounds; None where there
        are no label mixtures.
    target : Target or None
        What rounds are counted to; None also where it is on test samples that are not there.
    rounds_to_target : int or None
        Of the mean curve.
    interval : RoundsInterval or None
        Its 95 % bootstrap interval; None with one seed or without a target.
    rounds_to_target_by_seed : tuple of (int or None)
        In the order of `seeds`; empty without a target.
    bytes_to_target : int or None
        Sent both ways until the mean curve's round, mean over seeds.
    time_to_target : float or None
        Simulated time until that round, mean over seeds, in passes of a median client.
    total_bytes : int
        Sent both ways in all rounds, mean over seeds.
    participation : int64 array, shape [S, C]
        In how many rounds each client was chosen.
    participation_variation : float or None
        Coefficient of variation of those counts, mean over seeds; None if nobody was ever chosen
        under one of them.
    seconds_per_round, selection_seconds : float
        Mean wall-clock time of a round and of its selection.
    left_out, missed : int
        Updates that were not used, over all rounds and seeds, and those of them that were wanted:
        over-selection asks some clients more, so that enough answer.
    diverged_from : tuple of (int or None)
        The round from which on a seed's model had gone astray, until the last: its training loss
        not finite, or over twice that of round 0 with a score hardly better; None if it had not.
    train_evaluated_on : int
        Samples on which the training score was measured until the last round.
    train_on_subset : bool
        Whether those are a stratified subset of the training set.
    device : str
        Where it ran.
    served : tuple of Served
        The final models by client, on what they train on and in the test data; empty where that is
        not known.
    worst_class : WorstClass or None
        The class that they recognise least.
    profile : str or None
        What the profiles are read from, such as ``outputs of fc1``; None where there are none.
    comparison : Comparison or None
        With the panel's baseline: fedavg, or else its first selector.

    Examples
    --------
    >>> from fedcohort.simulation import Store
    >>> with Store.existing("fedcohort-out") as store:  # doctest: +SKIP
    ...     summaries = summarise(store, target=0.9)
    """

    label: str
    selector: str
    dataset: str
    skew: str
    panel: str
    config: RunConfig
    seeds: tuple[int, ...]
    unfinished: int
    rounds: int
    evaluated_rounds: npt.NDArray[np.int64]
    score: str
    train: Curve
    test: Curve | None
    test_perplexity: float | None
    gemd: float | None
    gemd_sd: float | None
    target: Target | None
    rounds_to_target: int | None
    interval: RoundsInterval | None
    rounds_to_target_by_seed: tuple[int | None, ...]
    bytes_to_target: int | None
    time_to_target: float | None
    total_bytes: int
    participation: npt.NDArray[np.int64]
    participation_variation: float | None
    seconds_per_round: float
    selection_seconds: float
    left_out: int
    missed: int
    diverged_from: tuple[int | None, ...]
    train_evaluated_on: int
    train_on_subset: bool
    device: str
    served: tuple[Served, ...]
    worst_class: WorstClass | None
    profile: str | None
    comparison: Comparison | None = None

    @property
    def part(self) -> Part:
        """Which samples the target is a score on; ``train`` where there is no target."""
        return "train" if self.target is None else self.target.on

    @property
    def curve(self) -> Curve:
        """The score on these."""
        return self.test if self.part == "test" and self.test is not None else self.train

    @property
    def arrival(self) -> int:
        """Rounds to the target; the round after the last where it was not reached."""
        return self.rounds + 1 if self.rounds_to_target is None else self.rounds_to_target


def summarise(
    store: Store, target: Targets, configs: Iterable[RunConfig] | None = None
) -> list[Summary]:
    """Summarise the runs of a store.

    Parameters
    ----------
    store : Store
        Where the runs are.
    target : float, Target, dict of Target by run, or None
        What rounds are counted to, a plain number being a training score; None leaves out
        everything about a target.
    configs : iterable of RunConfig, optional
        Runs to look at; all of the store if not given. Runs without a round are passed over.

    Returns
    -------
    list of Summary
        One a group of runs that differ in the seed alone, in the order they were entered; p-values
        are adjusted for the number of comparisons in a panel (Holm).

    Examples
    --------
    >>> from fedcohort.simulation import Store
    >>> with Store.existing("fedcohort-out") as store:  # doctest: +SKIP
    ...     summaries = summarise(store, target=0.9)
    """
    records: dict[RunConfig, list[RoundRecord]] = {}
    for config in store.configs() if configs is None else configs:
        if found := store.records(config.key):
            records[config] = found
    goal = Target(target) if isinstance(target, float | int) else target
    summaries = []
    for group in group_runs(records):
        own = goal.get(group.configs[0].key) if isinstance(goal, Mapping) else goal
        summaries.append(_summarise(store, group, records, own))
    return _compared(summaries)


def shown_settings(config: RunConfig, clients: int) -> dict[str, Any]:
    """Return the settings of a run that has so many clients, by name.

    Where the data have clients of their own, nothing divided them, whatever an earlier version
    wrote down.
    """
    values = {name: getattr(config, name) for name in SETTINGS}
    if config.own_clients:
        values |= {name: s.default for name, s in SETTINGS.items() if s.divides}
        values |= {"skew": "natural", "clients": clients}
    return values


def by_panel(summaries: Iterable[Summary]) -> dict[str, list[Summary]]:
    """Return the summaries that are comparable, by their panel."""
    panels: dict[str, list[Summary]] = {}
    for summary in summaries:
        panels.setdefault(summary.panel, []).append(summary)
    return panels


def timed(summaries: Iterable[Summary]) -> bool:
    """Tell whether simulated time says more than rounds do: clients are away, slow or drop out."""
    usual = {name: s.default for name, s in SETTINGS.items() if s.group == "system"}
    return any(getattr(s.config, name) != usual[name] for s in summaries for name in usual)


def common_target(summaries: Iterable[Summary]) -> Target | None:
    """Return the target that all summaries share; None if there is no such."""
    found = {summary.target for summary in summaries}
    return found.pop() if len(found) == 1 else None


def common_score(summaries: Iterable[Summary]) -> str:
    """Return the score that all summaries share, or just ``score``."""
    found = {summary.score for summary in summaries}
    return found.pop() if len(found) == 1 else "score"


def to_json(summaries: Sequence[Summary], target: float | None) -> dict[str, Any]:
    """Return summaries as the document that ``--json`` prints: plain values, None for unknown.

    Parameters
    ----------
    summaries : sequence of Summary
        What `summarise` returned.
    target : float or None
        The score they were made for.

    Examples
    --------
    >>> to_json([], target=0.9)
    {'target': 0.9, 'results': []}
    """
    return {"target": target, "results": [_result(summary) for summary in summaries]}


def _summarise(
    store: Store,
    group: Group,
    found: dict[RunConfig, list[RoundRecord]],
    target: Target | None,
) -> Summary:
    rounds = min(found[config][-1].round for config in group.configs)
    runs = [[r for r in found[config] if r.round <= rounds] for config in group.configs]
    trained = [[r for r in run if r.round > 0] for run in runs]
    config = group.configs[0]
    evaluated = np.array([t for t in range(rounds + 1) if config.evaluates(t)], dtype=np.int64)
    train = _curve(_by_seed(runs, evaluated, "train_score"))
    test = _curve(_by_seed(runs, evaluated, "test_score"))
    facts = store.facts(config.key)
    clients = facts["clients"]
    if any(client >= clients for run in trained for r in run for client in r.cohort):
        raise damaged(store.path, f"a cohort of run {config.key!r} has a client beyond {clients}")
    counts = np.array([_participation(run, clients) for run in trained])
    gemds = [r.gemd for run in trained for r in run if r.gemd is not None]
    reached, interval = None, None
    by_seed: tuple[int | None, ...] = ()
    if target is not None and target.on == "test" and not test.known:
        target = None
    if target is not None:
        curves = (test if target.on == "test" else train).seeds
        reached = rounds_to_target(evaluated, curves, target.score)
        by_seed = tuple(rounds_to_target(evaluated, curve, target.score) for curve in curves)
        if len(runs) > 1:
            rng = generator(0, "report bootstrap")
            interval = bootstrap_interval(evaluated, curves, target.score, rng=rng)
    evaluated_on = facts["train_evaluated_on"]
    return Summary(
        label=group.label,
        selector=config.selector,
        dataset=config.dataset,
        skew=shown_settings(config, facts["clients"])["skew"],
        panel=group.panel,
        config=config,
        seeds=tuple(c.seed for c in group.configs),
        unfinished=sum(not store.is_done(c.key) for c in group.configs),
        rounds=rounds,
        evaluated_rounds=evaluated,
        score=score_of(facts),
        train=train,
        test=test if test.known else None,
        test_perplexity=_perplexity(config, facts, _by_seed(runs, evaluated[-1:], "test_loss")),
        gemd=float(np.mean(gemds)) if gemds else None,
        gemd_sd=float(np.std(gemds)) if gemds else None,
        target=target,
        rounds_to_target=reached,
        interval=interval,
        rounds_to_target_by_seed=by_seed,
        bytes_to_target=None if reached is None else _bytes(runs, reached),
        time_to_target=None if reached is None else _elapsed(runs, reached),
        total_bytes=_bytes(runs, rounds),
        participation=counts,
        participation_variation=_variation(counts),
        seconds_per_round=_mean(trained, "seconds"),
        selection_seconds=_mean(trained, "selection_seconds"),
        left_out=sum(len(r.left_out) for run in trained for r in run),
        missed=sum(_missed(r, config.cohort) for run in trained for r in run),
        diverged_from=_diverged(evaluated, _by_seed(runs, evaluated, "train_loss"), train.seeds),
        train_evaluated_on=evaluated_on,
        train_on_subset=config.eval_samples is not None and evaluated_on >= config.eval_samples,
        device=facts["device"],
        served=served_by(store, group.configs),
        worst_class=worst_class(store, group.configs),
        profile=facts.get("profile"),
    )


def _by_seed(
    runs: Sequence[Sequence[RoundRecord]], rounds: npt.NDArray[np.int64], field: str
) -> FloatArray:
    """Return what runs have after some rounds, [S, T]; NaN where that is nothing."""
    found = [{r.round: getattr(r, field) for r in run} for run in runs]
    return np.array([[run.get(t) for t in rounds.tolist()] for run in found], dtype=np.float64)


def _curve(seeds: FloatArray) -> Curve:
    low, high = np.percentile(_resamples(len(seeds)) @ seeds / len(seeds), [2.5, 97.5], axis=0)
    return Curve(seeds, seeds.mean(axis=0), low, high)


@functools.lru_cache(maxsize=8)
def _resamples(seeds: int) -> npt.NDArray[np.int64]:
    """Return how often each seed is drawn in each resample, [resamples, seeds]."""
    share = np.full(seeds, 1 / seeds)
    return generator(0, "report bands").multinomial(seeds, share, size=_RESAMPLES)


def _diverged(
    rounds: npt.NDArray[np.int64], losses: FloatArray, scores: FloatArray
) -> tuple[int | None, ...]:
    """Return when the models of each seed went astray for good, given losses and scores [S, T]."""
    first = losses[:, :1]
    # A model that is sure of its mistakes has a high loss and yet a score that it has learned.
    learned = scores - scores[:, :1] > _LEARNED * (1 - scores[:, :1])
    astray = ~np.isfinite(losses) | (losses > 2 * first) & ~learned
    closing = np.logical_and.accumulate(astray[:, ::-1], axis=1).sum(axis=1)
    known = np.isfinite(first[:, 0])
    return tuple(int(rounds[-n]) if n else None for n in np.where(known, closing, 0).tolist())


def _missed(record: RoundRecord, wanted: int) -> int:
    reserve = max(0, len(set(record.cohort)) - wanted)
    return max(0, len(record.left_out) - reserve)


def _perplexity(config: RunConfig, facts: Mapping[str, Any], losses: FloatArray) -> float | None:
    if facts.get("task") != "next-token" or config.loss not in ("auto", "cross-entropy"):
        return None
    # Beyond exp(100) no model is worse than another, and exp(710) is no number any more.
    mean = float(np.exp(np.minimum(losses, 100)).mean())
    return None if np.isnan(mean) else mean


def _participation(run: Sequence[RoundRecord], clients: int) -> npt.NDArray[np.int64]:
    # A selector may draw a client twice in one round; it still takes part once.
    chosen = [client for record in run for client in set(record.cohort)]
    return np.bincount(np.array(chosen, dtype=np.int64), minlength=clients)


def _variation(counts: npt.NDArray[np.int64]) -> float | None:
    if not counts.any(axis=1).all():
        return None
    return float(np.mean([participation_variation(row) for row in counts]))


def _bytes(runs: Sequence[Sequence[RoundRecord]], last: int) -> int:
    sent = [sum(r.bytes_down + r.bytes_up for r in run if r.round <= last) for run in runs]
    return round(sum(sent) / len(sent))


def _elapsed(runs: Sequence[Sequence[RoundRecord]], last: int) -> float:
    return sum(r.elapsed for run in runs for r in run if r.round <= last) / len(runs)


def _mean(runs: Sequence[Sequence[RoundRecord]], field: str) -> float:
    values = [getattr(r, field) for run in runs for r in run]
    return float(np.mean(values)) if values else 0.0


def _compared(summaries: Sequence[Summary]) -> list[Summary]:
    found: dict[int, Comparison] = {}
    for members in by_panel(summaries).values():
        own = {}
        for member in members:
            baseline = _baseline(member, members)
            if member is not baseline and (c := _compare(member, baseline)):
                own[id(member)] = c
        adjusted = holm([c.p_value for c in own.values()])
        for (key, comparison), p in zip(own.items(), adjusted, strict=True):
            found[key] = dataclasses.replace(comparison, p_value=p)
    return [dataclasses.replace(s, comparison=found.get(id(s))) for s in summaries]


def _baseline(member: Summary, members: Sequence[Summary]) -> Summary:
    uniform = [m for m in members if m.selector == "fedavg"]
    alike = [m for m in uniform if m.config.init == member.config.init]
    return (alike or uniform or list(members))[0]


def _compare(ours: Summary, theirs: Summary) -> Comparison | None:
    seeds = [seed for seed in ours.seeds if seed in theirs.seeds]
    rounds, at_ours, at_theirs = np.intersect1d(
        ours.evaluated_rounds, theirs.evaluated_rounds, return_indices=True
    )
    if not seeds or ours.target is None:
        return None
    # A group has the target of its own runs: the baseline is held to that of ours.
    theirs = dataclasses.replace(theirs, target=ours.target)
    a, b = (
        summary.curve.seeds[[summary.seeds.index(seed) for seed in seeds]][:, at]
        for summary, at in ((ours, at_ours), (theirs, at_theirs))
    )
    return compare(theirs.label, rounds, a, b, ours.target.score)


def _known(values: FloatArray) -> list[float | None]:
    return [None if np.isnan(value) else value for value in values.tolist()]


def _result(summary: Summary) -> dict[str, Any]:
    interval, comparison = summary.interval, summary.comparison
    promise = summary.config.promise
    train = score_column("train", summary.score)
    return {
        "selector": summary.selector,
        "label": summary.label,
        "dataset": summary.dataset,
        "skew": summary.skew,
        "profile_promise": promise and dataclasses.asdict(promise),
        "seeds": list(summary.seeds),
        "rounds": summary.rounds,
        "unfinished_runs": summary.unfinished,
        "target": summary.target and summary.target.score,
        "target_on": summary.target and summary.target.on,
        "rounds_to_target": summary.rounds_to_target,
        "rounds_to_target_interval": interval and [interval.low, interval.high],
        "rounds_to_target_by_seed": list(summary.rounds_to_target_by_seed),
        "diverged_from_by_seed": list(summary.diverged_from),
        "evaluated_rounds": summary.evaluated_rounds.tolist(),
        "score": summary.score,
        train: _known(summary.train.mean),
        f"{train}_band": [_known(summary.train.low), _known(summary.train.high)],
        "train_evaluated_on": summary.train_evaluated_on,
        "train_on_subset": summary.train_on_subset,
        score_column("test", summary.score): summary.test and _known(summary.test.mean),
        "test_perplexity": summary.test_perplexity,
        "gemd": summary.gemd,
        "gemd_sd": summary.gemd_sd,
        "bytes_to_target": summary.bytes_to_target,
        "time_to_target": summary.time_to_target,
        "total_bytes": summary.total_bytes,
        "participation_variation": summary.participation_variation,
        "seconds_per_round": summary.seconds_per_round,
        "selection_seconds": summary.selection_seconds,
        "left_out": summary.left_out,
        "clients": [dataclasses.asdict(served) for served in summary.served],
        "worst_class": summary.worst_class and dataclasses.asdict(summary.worst_class),
        "profile": summary.profile,
        "comparison": comparison and dataclasses.asdict(comparison),
    }
