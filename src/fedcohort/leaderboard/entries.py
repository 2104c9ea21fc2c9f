"""What one selector did in one condition: the curves of all its seeds, and what follows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedcohort import metrics
from fedcohort.errors import StoreError
from fedcohort.metrics.convergence import first_reached
from fedcohort.randomness import generator
from fedcohort.report.comparison import Comparison, compare
from fedcohort.report.served import served_by
from fedcohort.simulation.scores import score_of

if TYPE_CHECKING:
    from fedcohort.simulation.config import RunConfig
    from fedcohort.simulation.scores import Part, Target
    from fedcohort.simulation.store import RoundRecord, Store

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Entry:
    """One selector in one condition.

    Attributes
    ----------
    selector : str
        What it is called.
    seeds : tuple of int
        Rising; S of them.
    target : Target
        What rounds are counted to.
    score : str
        What models are judged by, such as ``accuracy``.
    evaluated_rounds : int64 array, shape [T]
        From round 0, the first model, to the last round.
    train, test : float64 array, shape [S, T]
        The score after those rounds; NaN where there is none, as of a run that diverged, and
        throughout where there is no test part.
    bytes : int64 array, shape [S, T]
        Sent both ways up to those rounds.
    time : float64 array, shape [S, T]
        Simulated time up to those rounds, in passes of a median client.
    gemd, participation_variation, selection_seconds : float64 array, shape [S]
        Of each seed: mean over rounds, coefficient of variation over clients, mean over rounds;
        NaN of the first two where nobody was ever chosen.
    worst_decile : float64 array, shape [S]
        The final model's mean score over the tenth of the clients that it serves worst: over the
        test clients where there are such, else over the clients that train. NaN if not known.
    """

    selector: str
    seeds: tuple[int, ...]
    target: Target
    score: str
    evaluated_rounds: IntArray
    train: FloatArray
    test: FloatArray
    bytes: IntArray
    time: FloatArray
    gemd: FloatArray
    participation_variation: FloatArray
    selection_seconds: FloatArray
    worst_decile: FloatArray

    def only(self, seeds: Sequence[int]) -> Entry:
        """Return the entry with some of its seeds alone."""
        rows = [self.seeds.index(seed) for seed in seeds]
        return dataclasses.replace(
            self, seeds=tuple(seeds), **{name: getattr(self, name)[rows] for name in BY_SEED}
        )

    @property
    def rounds(self) -> int:
        """The last round."""
        return int(self.evaluated_rounds[-1])

    @property
    def curve(self) -> FloatArray:
        """The score that the target is one of, shape [S, T]."""
        return self.test if self.target.on == "test" else self.train

    @property
    def held_out(self) -> Part:
        """What models are best judged by: the test part, where there is one."""
        return "train" if np.isnan(self.test).all() else "test"

    @functools.cached_property
    def rounds_to_target(self) -> int | None:
        """Rounds to the target of the mean curve; None where it does not get there."""
        return metrics.rounds_to_target(self.evaluated_rounds, self.curve, self.target.score)

    @property
    def arrival(self) -> int:
        """Rounds to the target; the round after the last where it was not reached."""
        return self.rounds + 1 if self.rounds_to_target is None else self.rounds_to_target

    @functools.cached_property
    def arrivals(self) -> IntArray:
        """Rounds to the target of every seed, counted in the same way, shape [S]."""
        late = np.append(self.evaluated_rounds, self.rounds + 1)
        found: IntArray = late[first_reached(self.curve, self.target.score)]
        return found

    @functools.cached_property
    def interval(self) -> metrics.RoundsInterval | None:
        """The 95 % bootstrap interval of `rounds_to_target` over seeds; None with one seed."""
        if len(self.seeds) < 2:
            return None
        rng = generator(0, "report bootstrap")
        return metrics.bootstrap_interval(
            self.evaluated_rounds, self.curve, self.target.score, rng=rng
        )

    @property
    def bytes_to_target(self) -> int | None:
        """Bytes until the mean curve is there, mean over seeds."""
        place = self._place()
        return None if place is None else round(float(self.bytes[:, place].mean()))

    @property
    def time_to_target(self) -> float | None:
        """Simulated time until the mean curve is there, mean over seeds."""
        place = self._place()
        return None if place is None else float(self.time[:, place].mean())

    def _place(self) -> int | None:
        if self.rounds_to_target is None:
            return None
        return int(np.searchsorted(self.evaluated_rounds, self.rounds_to_target))

    def final(self, part: Part) -> float | None:
        """Return the last score on ``train`` or ``test``, mean over seeds; None if one has none."""
        last = float(getattr(self, part)[:, -1].mean())
        return None if np.isnan(last) else last

    def peak(self, part: Part) -> float | None:
        """Return the highest point of the mean curve of ``train`` or ``test``, if all is known."""
        highest = float(getattr(self, part).mean(axis=0).max())
        return None if np.isnan(highest) else highest

    def drop(self, part: Part) -> float | None:
        """Return how far the mean curve of ``train`` or ``test`` ends below its highest point."""
        fallen = metrics.drop_after_peak(getattr(self, part))
        return None if np.isnan(fallen) else fallen


# The fields that have a row per seed: what a file of published results keeps.
BY_SEED = (
    "train",
    "test",
    "bytes",
    "time",
    "gemd",
    "participation_variation",
    "selection_seconds",
    "worst_decile",
)


def read_entry(store: Store, configs: Sequence[RunConfig], label: str, target: Target) -> Entry:
    """Read what a selector did from a store.

    Parameters
    ----------
    store : Store
        Where its runs are.
    configs : sequence of RunConfig
        Its runs in one condition, a seed each, all of them finished.
    label : str
        What to call it.
    target : Target
        What rounds are counted to.
    """
    ordered = sorted(configs, key=lambda config: config.seed)
    for config in ordered:
        if not store.is_done(config.key):
            raise StoreError(
                f"The run of {config.selector} with seed {config.seed} in {str(store.folder)!r} is"
                " not finished: give the command that began it once more."
            )
    facts = store.facts(ordered[0].key)
    runs = [store.records(config.key) for config in ordered]
    evaluated = [r.round for r in runs[0] if ordered[0].evaluates(r.round)]
    columns = [_columns(run, evaluated, facts["clients"]) for run in runs]
    for config, column in zip(ordered, columns, strict=True):
        column["worst_decile"] = _worst_decile(store, config)
    return Entry(
        selector=label,
        seeds=tuple(config.seed for config in ordered),
        target=target,
        score=score_of(facts),
        evaluated_rounds=np.array(evaluated, dtype=np.int64),
        **{name: np.array([column[name] for column in columns]) for name in BY_SEED},
    )


def _columns(
    run: Sequence[RoundRecord], evaluated: Sequence[int], clients: int
) -> dict[str, FloatArray | IntArray | float]:
    at = {record.round: place for place, record in enumerate(run)}
    places = [at[number] for number in evaluated]
    trained = [record for record in run if record.round > 0]
    chosen = [client for record in trained for client in set(record.cohort)]
    mixtures = [record.gemd for record in trained if record.gemd is not None]
    return {
        "train": np.array([run[place].train_score for place in places], dtype=np.float64),
        "test": np.array([run[place].test_score for place in places], dtype=np.float64),
        "bytes": np.cumsum([r.bytes_down + r.bytes_up for r in run], dtype=np.int64)[places],
        "time": np.cumsum([record.elapsed for record in run], dtype=np.float64)[places],
        "gemd": float(np.mean(mixtures)) if mixtures else np.nan,
        "participation_variation": (
            metrics.participation_variation(np.bincount(chosen, minlength=clients))
            if chosen
            else np.nan
        ),
        "selection_seconds": float(np.mean([record.selection_seconds for record in trained])),
    }


def _worst_decile(store: Store, config: RunConfig) -> float:
    served = served_by(store, [config])
    return served[-1].worst_decile if served else np.nan


def compare_entries(ours: Entry, theirs: Entry) -> Comparison | None:
    """Compare two selectors in one condition, over the seeds that both have.

    Returns
    -------
    Comparison or None
        None when neither reaches the target, or when there is only one seed.
    """
    shared = [seed for seed in ours.seeds if seed in theirs.seeds]
    a, b = ours.only(shared), theirs.only(shared)
    return compare(theirs.selector, a.evaluated_rounds, a.curve, b.curve, ours.target.score)
