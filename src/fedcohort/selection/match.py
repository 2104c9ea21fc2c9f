"""Profile matching: cohorts whose mean profile is everyone's. fedcohort's own rule.

A profile is a mean over the client's samples, so it is linear in what the client holds, and the
data that a cohort Y trains on have the profile f̄_Y = Σ_{c∈Y} n_c f_c / Σ_{c∈Y} n_c. FedAvg wants
the cohort's mixture to be the population's; without seeing a label, ask that f̄_Y be f̄. (A DPP
asks that clients differ, which is not the same: two classes per client defeat it.)

Rule: along the principal directions of the profiles, with variances λ_0 ≥ λ_1 ≥ …, a client has the
coordinates z_j = (f_c − f̄)_j · √λ_j / (λ_j + ρ). That is whitening where λ_j is well above the
ridge ρ and leaves out what lies below it, which is noise of small clients, or more than k clients
could match: ρ = 3 λ_2k (3 λ_32 from k = 16 on; 3 times the last λ if there are fewer). Start from a
uniform random cohort; visit its places in random order and put into each the candidate that brings
‖Σ n_c z_c / Σ n_c‖ lowest, both over the cohort, until no single exchange helps noticeably. Weights
near n_c / Σ n_c that bring the mean profile closer still. Whoever has had much more than its share
of all weights so far is not a candidate, so that every sample has the same say in the long run.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.parameters import OneOf, parameter
from fedcohort.selection.base import Cohort, Floats, Need, Outcome
from fedcohort.selection.coordinates import Basis
from fedcohort.selection.guard import ProfileSelector
from fedcohort.selection.registry import register
from fedcohort.selection.roster import Rows

# Candidates of one draw: enough that more do not lower GEMD, whatever the population.
_CANDIDATES = 2000
_CANDIDATES_PER_PLACE = 4
# Exchanges that gain less than this share are rounding, and passes that do are not worth another.
_GAIN = 1e-9
_GAIN_PER_PASS = 1e-2
# How far a client may be ahead of its due, in standard deviations of uniform sampling.
_LEAD = 0.5
# Below the first share of the largest coordinate squared, noise is taken to be rounding; from the
# second on weights do not move.
_LEAST_NOISE, _MOST_NOISE = 1e-6, 1e12
# Bounds that may be met on the way to the best weights.
_BOUNDS_MET = 50
# No client gets more than this many times its share of the cohort's data.
_LARGEST_WEIGHT = 2.0

_PROJECTED = "projected"
# What each client has had, weights or rounds; what of that in its last cohort, and, of those who
# were away when the last cohort was chosen, what they were credited with instead.
_HAD, _LAST, _CREDIT = "had", "last", "credit"


@register("match")
@dataclasses.dataclass(kw_only=True, eq=False)
class Match(ProfileSelector):
    """Choose clients whose joint data look like everyone's.

    Parameters
    ----------
    guard : {"off", "profiles", "updates"}
        Who is left out: nobody; clients whose profiles look forged; or also those whose training
        contradicts their profile.
    outputs : int, optional
        Length of the output layer's bias, for the guard ``updates``: that of the simulated model,
        or 10.
    evenness : {"samples", "clients", "strict", "free"}
        How evenly the data are used. ``samples``: every sample should have had the same say, so a
        client's due is its share of the data, and what it has had the sum of its weights; nobody
        is chosen who is ahead of that by more than uniform sampling would let many be.
        ``clients``: the same with rounds, of which every client is due as many. ``strict``: every
        client once before any twice, and so on. ``free``: whoever matches best.
    weights : {"matched", "size"}
        Weights of at most twice n_c / Σ n_c that bring the cohort's profile closer still, as far
        as the profiles' noise allows to tell; or n_c / Σ n_c.
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

    evenness: str = parameter("samples", OneOf("samples", "clients", "strict", "free"))
    weights: str = parameter("matched", OneOf("matched", "size"))
    search: str = parameter("swap", OneOf("swap", "greedy", "best-of-100"))
    whiten: bool = parameter(True, OneOf(False, True))

    revision = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._basis: Basis | None = None
        self._mean: Floats | None = None

    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        self._roster.define(_HAD, 0.0)
        self._roster.define(_LAST, 0.0)
        fixed, free = rows[:0], rows
        if self.evenness == "strict":
            # Who must be chosen and who may be, so that nobody trains twice before the last.
            rounds = self._roster[_HAD][rows]
            turn = np.partition(rounds, k - 1)[k - 1]
            fixed, free = rows[rounds < turn], rows[rounds == turn]
        rate = self._roster[_HAD][rows].sum() / self._claims(rows).sum()
        most = max(_CANDIDATES, _CANDIDATES_PER_PLACE * k)
        if len(free) > most:
            free = np.sort(rng.choice(free, most, replace=False, shuffle=False))
        if self.evenness in ("samples", "clients"):
            free = self._not_ahead(k, free, rate)
        pool = np.concatenate([fixed, free])
        points, sizes = self._coordinates(pool, k), self._roster["size"][pool]
        places = _SEARCHES[self.search](points * sizes[:, None], sizes, k, len(fixed), rng)
        chosen, shares = pool[places], sizes[places] / sizes[places].sum()
        if self.weights == "matched" and self._basis is not None:
            noise = self._basis.noise(k, self.whiten) * self._roster["size"].mean() / sizes[places]
            shares = _matched_weights(points[places], shares, noise)
        given = k * shares if self.evenness == "samples" else np.ones(k)
        self._roster.put(_LAST, chosen, given)
        self._roster.put(_HAD, chosen, self._roster[_HAD][chosen] + given)
        if self.evenness != "strict":
            self._keep_level(k, rows)
        return self._cohort(chosen, None if self.weights == "size" else shares)

    def _claims(self, rows: Rows) -> Floats:
        """Return what the dues [m] of clients are in proportion to."""
        return self._roster["size"][rows] if self.evenness == "samples" else np.ones(len(rows))

    def _not_ahead(self, k: int, rows: Rows, rate: float) -> Rows:
        """Return those of `rows`, at least k, that are not far ahead of their due.

        `rate` is what those who are there now have had for each unit of their claims.
        """
        due = rate * self._claims(rows)
        ahead = self._roster[_HAD][rows] - due - _LEAD * np.sqrt(due)
        level: NDArray[np.bool_] = ahead <= max(0.0, np.partition(ahead, k - 1)[k - 1])
        return rows[level]

    def _keep_level(self, k: int, rows: Rows) -> None:
        """Credit those who are away with what those in `rows` have on average in this round.

        So they neither hold the others back nor, once they are there again, fill whole cohorts.
        """
        self._roster.drop(_CREDIT)
        if len(rows) == len(self._roster):
            return
        self._roster.define(_CREDIT, 0.0)
        there = np.zeros(len(self._roster), bool)
        there[rows] = True
        away = np.flatnonzero(~there)
        credit = k * self._claims(away) / self._claims(rows).sum()
        self._roster.put(_CREDIT, away, credit)
        self._roster.put(_HAD, away, self._roster[_HAD][away] + credit)

    def observe(self, outcome: Outcome) -> None:
        """Take back what clients had that did not train; in weights, the others share it."""
        super().observe(outcome)
        if _LAST not in self._roster or outcome.trained.all():
            return
        rows = self._roster.rows(outcome.ids)
        given = self._roster[_LAST][rows]
        kept = np.where(outcome.trained, given, 0.0)
        if self.evenness == "samples" and kept.any():
            kept *= given.sum() / kept.sum()
        self._roster.put(_HAD, rows, np.maximum(self._roster[_HAD][rows] + kept - given, 0.0))
        self._roster.put(_LAST, rows, kept)
        if _CREDIT in self._roster and given.any():
            # Whoever was away has had no more than those who were there.
            away = np.flatnonzero(self._roster[_CREDIT])
            credit = self._roster[_CREDIT][away]
            due = credit * (kept.sum() / given.sum())
            self._roster.put(_HAD, away, self._roster[_HAD][away] + due - credit)
            self._roster.put(_CREDIT, away, due)

    def describe(self) -> dict[str, Any]:
        """Say how many directions of the profiles are compared."""
        return {} if self._basis is None else {"directions": len(self._basis.variances)}

    # -- coordinates of a population that changes ---------------------------------------------

    def _coordinates(self, rows: Rows, k: int) -> Floats:
        """Return the coordinates z [m, r] of some clients; f̄ is the mean of all clients."""
        everyone = self._population()
        basis = self._fitted_basis(everyone)
        projected, sizes = self._roster[_PROJECTED], self._roster["size"]
        if self._mean is None:
            some = slice(None) if everyone is None else everyone
            self._mean = (sizes[some] @ projected[some]) / sizes[some].sum()
        centred = projected[rows] - self._mean
        return centred * basis.scales(k) if self.whiten else centred

    def _fitted_basis(self, everyone: Rows | None) -> Basis:
        """Keep the directions until more clients came or changed than they were found among."""
        if self._basis is None or self._basis.changed > self._basis.clients:
            profiles, sizes = self._roster[Need.PROFILE.value], self._roster["size"]
            if everyone is not None:
                profiles, sizes = profiles[everyone], sizes[everyone]
            self._basis = Basis.fit(profiles, sizes)
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
        before = np.arange(len(self._roster) - len(rows))
        if _HAD in self._roster and len(before):
            # Newcomers are owed nothing for the rounds before they came.
            had = self._roster[_HAD][before]
            rate = had.sum() / self._claims(before).sum()
            if self.evenness == "strict":
                # Not those who were away for many turns.
                rate = np.quantile(had, 0.5, method="lower")
            self._roster.put(_HAD, rows, rate * self._claims(rows))

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
            names = [field.name for field in dataclasses.fields(Basis)]
            saved: dict[str, Any] = {name: state[f"basis.{name}"] for name in names}
            self._basis = Basis(**{n: v if v.ndim else v.item() for n, v in saved.items()})


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


def _matched_weights(points: Floats, shares: Floats, noise: Floats) -> Floats:
    """Return weights [k] near the clients' shares that bring Σ w_c z_c closer to 0.

    They lower ‖Σ w_c z_c‖² + Σ noise_c (w_c − share_c)², sum to 1, and lie between 0 and twice the
    shares: from the shares straight towards the minimum, as far as a bound; whoever meets it stays
    there, and the others go on.

    Parameters
    ----------
    points : float64 [k, r]
        z_c.
    shares : float64 [k]
        n_c / Σ n_c.
    noise : float64 [k]
        Variance of ‖z_c‖ that is a matter of chance.
    """
    spread = float(np.abs(points).max(initial=0.0)) or 1.0
    points, noise = points / spread, np.nan_to_num(noise / spread / spread, nan=_MOST_NOISE)
    noise = np.clip(noise, _LEAST_NOISE, _MOST_NOISE)
    weights, free = shares.copy(), np.ones(len(shares), bool)
    highest = np.minimum(_LARGEST_WEIGHT * shares, 1.0)
    for _ in range(_BOUNDS_MET):
        move = np.zeros(len(shares))
        move[free] = _newton_step(points, noise, weights, weights - shares, free)
        # How far each may go until it meets a bound.
        room = np.where(move > 0, highest - weights, weights)
        steps = np.divide(room, np.abs(move), out=np.full(len(move), np.inf), where=move != 0)
        step = min(1.0, float(steps.min()))
        weights = np.clip(weights + step * move, 0.0, highest)
        free &= steps > step
        if step == 1.0 or not free.any():
            break
    total: float = weights.sum()
    return weights / total


def _newton_step(
    points: Floats, noise: Floats, weights: Floats, moved: Floats, free: NDArray[np.bool_]
) -> Floats:
    """Return the change of the free weights, of sum 0, that leads to the minimum; see above."""
    own, chance = points[free], noise[free]
    goal = -own @ (weights @ points) - chance * moved[free]
    # (Z Zᵀ + D)⁻¹ by Woodbury's identity, which stays cheap in large cohorts, of the goal and of 1,
    # whose multiple takes care of the sum.
    right = np.stack([goal, np.ones(len(own))], axis=1) / chance[:, None]
    inner = np.eye(own.shape[1]) + own.T @ (own / chance[:, None])
    solved = right - own @ np.linalg.solve(inner, own.T @ right) / chance[:, None]
    step: Floats = solved[:, 0] - solved[:, 1] * (solved[:, 0].sum() / solved[:, 1].sum())
    return step
