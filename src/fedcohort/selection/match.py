"""Profile matching: cohorts whose mean profile is everyone's. fedcohort's own rule.

A profile is a mean over the client's samples, so it is linear in what the client holds, and the
data that a cohort Y trains on have the profile f̄_Y = Σ_{c∈Y} n_c f_c / Σ_{c∈Y} n_c. FedAvg wants
the cohort's mixture to be the population's; without seeing a label, ask that f̄_Y be f̄. (A DPP
asks that clients differ, which is not the same: two classes per client defeat it.)

Rule: along the principal directions of the profiles, with variances λ_1 ≥ λ_2 ≥ …, a client has the
coordinates z_j = (f_c − f̄)_j · √λ_j / (λ_j + ρ). That is whitening where λ_j is well above the
ridge ρ and leaves out what lies below it, which is noise of small clients, or more than k clients
could match: ρ = 3 λ_2k (3 λ_32 from k = 16 on). Start from a uniform random cohort; visit its
places in random order and put into each the candidate that brings ‖Σ n_c z_c / Σ n_c‖ lowest, both
over the cohort, until no single exchange helps noticeably. Weights n_c / Σ n_c.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy  # its parts are loaded when they are used
from numpy.typing import NDArray

from fedcohort.parameters import OneOf, parameter
from fedcohort.randomness import generator
from fedcohort.selection.base import Cohort, Floats, Need, Outcome
from fedcohort.selection.guard import ProfileSelector
from fedcohort.selection.registry import register
from fedcohort.selection.roster import Rows

# Directions that are kept at most, and clients that they are sought among at most.
_DIRECTIONS = 64
_SAMPLED_CLIENTS = 20_000
# The ridge, in units of the variance of direction 2k (of 32, for large cohorts).
_RIDGE = 3.0
# Candidates of one draw: enough that more do not lower GEMD, whatever the population.
_CANDIDATES = 2000
_CANDIDATES_PER_PLACE = 4
# Exchanges that gain less than this share are rounding, and passes that do are not worth another.
_GAIN = 1e-9
_GAIN_PER_PASS = 1e-2
# Rounds that a client may lead by, in standard deviations of uniform sampling.
_LEAD = 0.5
# Coordinates whose squares can still be summed.
_LARGEST = 1e100
# No client gets more than this many times its share of the data.
_LARGEST_WEIGHT = 2.0

_PROJECTED = "projected"
_ROUNDS = "rounds"


@register("match")
@dataclasses.dataclass(kw_only=True, eq=False)
class Match(ProfileSelector):
    """Choose clients whose joint data look like everyone's.

    Parameters
    ----------
    guard : {"off", "profiles", "updates"}
        Who is left out: nobody; clients whose profiles look forged; or also those whose training
        contradicts their profile.
    outputs : int
        Classes: the length of the output layer's bias; for the guard ``updates``.
    evenness : {"uniform", "strict", "free"}
        How evenly clients take part. ``uniform``: nobody is chosen whose rounds exceed the mean by
        more than uniform sampling would let many do. ``strict``: every client once before any
        twice, and so on. ``free``: whoever matches best.
    weights : {"size", "matched"}
        n_c / Σ n_c, or weights of at most twice that which bring the cohort's profile closer still.
    search : {"swap", "greedy", "best-of-100"}
        How a cohort is sought; all but ``swap`` are baselines.
    whiten : bool
        False compares plain profiles, as a baseline.

    Examples
    --------
    >>> profiles = np.random.default_rng(1).normal(size=(100, 16))
    >>> len(Match(evenness="free").fit(profiles).select(10, rng=np.random.default_rng(0)))
    10
    """

    evenness: str = parameter("uniform", OneOf("uniform", "strict", "free"))
    weights: str = parameter("size", OneOf("size", "matched"))
    search: str = parameter("swap", OneOf("swap", "greedy", "best-of-100"))
    whiten: bool = parameter(True, OneOf(False, True))

    def __post_init__(self) -> None:
        super().__post_init__()
        self._basis: _Basis | None = None
        self._mean: Floats | None = None

    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        self._roster.define(_ROUNDS, 0.0)
        if self.evenness == "strict":
            fixed, free = self._whose_turn(k, rows)
        else:
            fixed, free = np.empty(0, np.intp), rows
        most = max(_CANDIDATES, _CANDIDATES_PER_PLACE * k)
        if len(free) > most:
            free = np.sort(rng.choice(free, most, replace=False, shuffle=False))
        if self.evenness == "uniform":
            free = self._not_ahead(k, free)
        pool = np.concatenate([fixed, free])
        points, sizes = self._coordinates(pool, k), self._roster["size"][pool]
        chosen = _SEARCHES[self.search](points * sizes[:, None], sizes, k, len(fixed), rng)
        self._count(pool[chosen], +1)
        if self.weights == "size":
            return self._cohort(pool[chosen])
        return self._cohort(pool[chosen], _matched_weights(points[chosen], sizes[chosen]))

    def _whose_turn(self, k: int, rows: Rows) -> tuple[Rows, Rows]:
        """Return who must be chosen and who may be, so that nobody trains twice before the last."""
        rounds = self._roster[_ROUNDS][rows]
        turn = np.partition(rounds, k - 1)[k - 1]
        return rows[rounds < turn], rows[rounds == turn]

    def _not_ahead(self, k: int, rows: Rows) -> Rows:
        """Return those of `rows`, at least k, that were not chosen far more often than most."""
        rounds, mean = self._roster[_ROUNDS][rows], self._roster[_ROUNDS].mean()
        turn = np.partition(rounds, k - 1)[k - 1]
        level: NDArray[np.bool_] = rounds <= max(turn, mean + _LEAD * np.sqrt(mean))
        return rows[level]

    def observe(self, outcome: Outcome) -> None:
        """Give their turn back to clients that were chosen but did not train."""
        super().observe(outcome)
        self._roster.define(_ROUNDS, 0.0)
        self._count(self._roster.rows(outcome.ids[~outcome.trained]), -1)

    def _count(self, rows: Rows, change: int) -> None:
        self._roster.put(_ROUNDS, rows, np.maximum(self._roster[_ROUNDS][rows] + change, 0))

    def describe(self) -> dict[str, Any]:
        """Say how many directions of the profiles are compared."""
        return {} if self._basis is None else {"directions": len(self._basis.variances)}

    # -- coordinates of a population that changes ---------------------------------------------

    def _coordinates(self, rows: Rows, k: int) -> Floats:
        """Return the coordinates z [m, r] of some clients; f̄ is the mean of all clients."""
        everyone = self._population(rows)
        basis = self._fitted_basis(everyone)
        projected, sizes = self._roster[_PROJECTED], self._roster["size"]
        if self._mean is None:
            some = slice(None) if everyone is None else everyone
            self._mean = (sizes[some] @ projected[some]) / sizes[some].sum()
        centred = projected[rows] - self._mean
        return centred * basis.scales(k) if self.whiten else centred

    def _fitted_basis(self, everyone: Rows | None) -> "_Basis":
        """Keep the directions until more clients came or changed than they were found among."""
        if self._basis is None or self._basis.changed > self._basis.clients:
            profiles, sizes = self._roster[Need.PROFILE.value], self._roster["size"]
            if everyone is not None:
                profiles, sizes = profiles[everyone], sizes[everyone]
            self._basis = _Basis.fit(profiles, sizes)
            self._roster.drop(_PROJECTED)
            self._roster.define(_PROJECTED, 0.0, (len(self._basis.variances),))
            self._project(np.arange(len(self._roster)))
            self._basis = dataclasses.replace(self._basis, changed=0)
        return self._basis

    def _project(self, rows: Rows) -> None:
        self._mean = None
        if self._basis is None:
            return
        profiles = self._roster[Need.PROFILE.value]
        for some in np.array_split(rows, max(1, len(rows) // 50_000)):
            self._roster.put(_PROJECTED, some, self._basis.project(profiles[some]))
        self._basis = dataclasses.replace(self._basis, changed=self._basis.changed + len(rows))

    def _joined(self, rows: Rows) -> None:
        super()._joined(rows)
        self._project(rows)

    def _told(self, need: Need, rows: Rows) -> None:
        super()._told(need, rows)
        if need is Need.PROFILE:
            self._project(rows)

    def _left(self) -> None:
        super()._left()
        self._mean = None

    def _forget(self) -> None:
        super()._forget()
        self._basis = self._mean = None

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the roster and the directions."""
        saved = super().state()
        if self._basis is not None:
            for field in dataclasses.fields(self._basis):
                saved[f"basis.{field.name}"] = np.asarray(getattr(self._basis, field.name))
        return saved

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue with the same clients and the same directions."""
        super().restore(state)
        if "basis.centre" in state:
            self._basis = _Basis(
                unit=float(state["basis.unit"]),
                centre=state["basis.centre"],
                directions=state["basis.directions"],
                variances=state["basis.variances"],
                clients=int(state["basis.clients"]),
                changed=int(state["basis.changed"]),
            )


@dataclasses.dataclass(frozen=True, eq=False)
class _Basis:
    """Principal directions of a population's profiles.

    Attributes
    ----------
    unit : float
        What profiles are divided by first, so that huge and tiny ones can be squared.
    centre : float64 [Q]
        What is subtracted then.
    directions : float64 [r, Q]
        Orthonormal rows.
    variances : float64 [r]
        Variances along them, in descending order.
    clients, changed : int
        Clients at the fit, and how many came or changed since.
    """

    unit: float
    centre: Floats
    directions: Floats
    variances: Floats
    clients: int
    changed: int = 0

    @classmethod
    def fit(cls, profiles: NDArray[Any], sizes: Floats) -> "_Basis":
        """Find the directions among all clients, or a fixed sample of a large population."""
        rows = np.arange(len(profiles))
        if len(rows) > _SAMPLED_CLIENTS:
            draw = generator(0, "match directions").choice(len(rows), _SAMPLED_CLIENTS, False)
            rows = np.sort(draw)
        share = sizes[rows] / sizes[rows].sum()
        sample = profiles[rows].astype(np.float64)
        unit = float(np.abs(sample).max()) or 1.0
        sample /= unit
        centre = share @ sample
        sample = (sample - centre) * np.sqrt(share)[:, None]
        wide = sample.shape[1] > sample.shape[0]
        gram = sample @ sample.T if wide else sample.T @ sample
        count = min(_DIRECTIONS, len(gram))
        values, vectors = scipy.linalg.eigh(
            gram, subset_by_index=[len(gram) - count, len(gram) - 1]
        )
        values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1].T
        keep = values > 1e-12 * max(values[0], 1e-300)
        values, vectors = values[keep], vectors[keep]
        if wide:
            vectors = (vectors @ sample) / np.sqrt(values)[:, None]
        return cls(unit, centre, vectors, values, len(profiles))

    def project(self, profiles: NDArray[Any]) -> Floats:
        """Return the coordinates [m, r] of profiles [m, Q] along the directions."""
        with np.errstate(over="ignore", invalid="ignore"):
            projected = (profiles / self.unit - self.centre) @ self.directions.T
        # Whoever is so far outside may be anywhere out there.
        far: Floats = np.nan_to_num(projected, nan=_LARGEST, posinf=_LARGEST, neginf=-_LARGEST)
        return np.clip(far, -_LARGEST, _LARGEST)

    def scales(self, k: int) -> Floats:
        """Return √λ / (λ + ρ) for each direction."""
        place = min(2 * k, _DIRECTIONS // 2)
        floor = self.variances[place] if place < len(self.variances) else 0.0
        scales: Floats = np.sqrt(self.variances) / (self.variances + _RIDGE * floor)
        return scales


def _swap(
    pull: Floats, sizes: Floats, k: int, fixed: int, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Improve a random cohort by single exchanges until none helps.

    Parameters
    ----------
    pull : float64 [m, r]
        n_c z_c of each candidate.
    sizes : float64 [m]
        n_c.
    k, fixed : int
        Places in the cohort; the first `fixed` candidates have theirs for sure.
    rng : numpy.random.Generator
        Draws the first cohort and the order of the places.

    Returns
    -------
    int [k]
        Candidates.
    """
    chosen = _random_cohort(len(pull), k, fixed, rng)
    taken = np.zeros(len(pull), bool)
    taken[chosen] = True
    squares = np.einsum("ij,ij->i", pull, pull)
    total, weight = pull[chosen].sum(axis=0), sizes[chosen].sum()
    distance = total @ total / weight**2
    before = np.inf
    while distance < before * (1 - _GAIN_PER_PASS):
        before = distance
        for place in rng.permutation(np.arange(fixed, k)):
            out = chosen[place]
            others, lighter = total - pull[out], weight - sizes[out]
            reached = (others @ others + 2 * (pull @ others) + squares) / (lighter + sizes) ** 2
            # Rounding may leave less than nothing of a square, of which no share is ever gained.
            np.maximum(reached, 0.0, out=reached)
            reached[taken] = np.inf
            best = int(np.argmin(reached))
            if reached[best] < distance * (1 - _GAIN):
                taken[out], taken[best] = False, True
                chosen[place] = best
                total, weight = others + pull[best], lighter + sizes[best]
                distance = reached[best]
    return chosen


def _greedy(
    pull: Floats, sizes: Floats, k: int, fixed: int, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Add the candidate that brings the cohort closest, from a random first one; see `_swap`."""
    chosen = list(range(fixed)) or [int(rng.integers(len(pull)))]
    squares = np.einsum("ij,ij->i", pull, pull)
    while len(chosen) < k:
        total, weight = pull[chosen].sum(axis=0), sizes[chosen].sum()
        reached = (total @ total + 2 * (pull @ total) + squares) / (weight + sizes) ** 2
        reached[chosen] = np.inf
        chosen.append(int(np.argmin(reached)))
    return np.array(chosen)


def _best_of_100(
    pull: Floats, sizes: Floats, k: int, fixed: int, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Take the closest of 100 random cohorts; see `_swap`."""
    cohorts = [_random_cohort(len(pull), k, fixed, rng) for _ in range(100)]
    means = [pull[c].sum(axis=0) / sizes[c].sum() for c in cohorts]
    return cohorts[int(np.argmin([mean @ mean for mean in means]))]


_SEARCHES = {"swap": _swap, "greedy": _greedy, "best-of-100": _best_of_100}


def _random_cohort(m: int, k: int, fixed: int, rng: np.random.Generator) -> NDArray[np.intp]:
    drawn = fixed + rng.choice(m - fixed, k - fixed, replace=False)
    return np.concatenate([np.arange(fixed), drawn])


def _matched_weights(points: Floats, sizes: Floats) -> Floats:
    """Return weights [k] near the clients' shares that bring Σ w_c z_c closer to 0."""
    share = sizes / sizes.sum()
    spread = np.linalg.norm(points, axis=1).max() or 1.0
    # Least squares on: the mean profile, the sum 1 (firmly), and staying near the shares (weakly).
    rows = np.concatenate(
        [points.T / spread, 1e3 * np.ones((1, len(share))), 0.1 * np.eye(len(share))]
    )
    goal = np.concatenate([np.zeros(points.shape[1]), [1e3], 0.1 * share])
    bounds = (0, np.minimum(_LARGEST_WEIGHT * share, 1 + 1e-9))
    found = scipy.optimize.lsq_linear(rows, goal, bounds=bounds)
    weights: Floats = found.x / found.x.sum()
    return weights
