"""Is selection worth it here? An answer from profiles alone, before anything is trained.

Cohorts are drawn with each rule, and it is seen how far the mean profile of a cohort is from
everyone's. In the coordinates of `match` (`fedcohort.selection.coordinates`) that says how close a
rule comes, what k clients can reach at best, and how many clients drawn at random would do.

The rounds that stochastic gradient descent takes to a given accuracy grow in proportion to a
constant plus the variance of its gradients (Ghadimi and Lan, 2013), so the predicted gain is

    gain = (s² + u²) / (s² + m²),    m = left · u

where u is how far uniform cohorts are off, `left` the share of that which `match` leaves, in plain
profile space, and s stands for all that disturbs training and that selection does not change. Where
clients also say how far the gradients of their samples agree (`fedcohort.profiles.agreement`), u is
the error of a uniform cohort's gradient, relative to a sample's:

    u² = (mean agreement - shared agreement) / (1 - shared agreement) · d² / D²

The first factor is the share of the variance of samples' gradients that lies between clients; the
second, of mean squared distances of uniform cohorts' profiles and of clients', is about 1/k - 1/C.
Without agreements u is d, relative to the length of everyone's mean profile. s is the one constant
of each, fitted to the conditions of the leaderboard (`studies/advise.py`, docs/advise.md).

S. Ghadimi, G. Lan: Stochastic First- and Zeroth-Order Methods for Nonconvex Stochastic Programming.
SIAM Journal on Optimization 23(4), 2013.
"""

import dataclasses
import math
import shutil
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.errors import InvalidInputError, InvalidParameterError
from fedcohort.parameters import Interval
from fedcohort.randomness import generator
from fedcohort.selection import Outcome, Selector, make_selector
from fedcohort.selection.base import Floats
from fedcohort.selection.coordinates import DIRECTIONS, Basis

RULES = ("fedavg", "dp3s", "match")
_BEST = "match:evenness=free"
_COHORTS = 200
# Of larger populations a sample is looked at, so that the answer takes seconds.
_CLIENTS, _CLIENTS_PER_PLACE = 1000, 4
# Profiles that differ by less of their length are alike; agreements above 1 by less are 1.
_ROUNDING = 1e-6
# How much less variance the next direction has where kinds end and noise begins.
_GAP = 3.0
# s, from python studies/advise.py: with agreements, and from profiles alone. Of the latter, those
# that differ far more than its own have no prediction.
OTHER_GRADIENT_ERROR = 0.257
OTHER_ERROR = 0.105
_LARGEST_SPREAD = 0.3
# Paragraphs are no wider, however wide the terminal is.
_WIDTH = 80
# Gains that are worth a change, and that are worth a try.
_CLEAR, _SLIGHT = 1.25, 1.1

_PROFILES_CANNOT_KNOW = (
    "Profiles cannot tell whether clients differ by label, which selection helps with, or by style"
    " (writers, devices), of which it helps less; nor how much gradients feel of the difference,"
    " nor how long training takes. Agreements of gradients, one more number per client, would tell"
    " the first two."
)
_AGREEMENTS_CANNOT_KNOW = (
    "Neither profiles nor agreements of gradients can tell how long training takes, nor who will be"
    " away."
)
_BALANCE = "all classes are equally frequent over all clients"
_ASSUMES_BALANCE = (
    f" That {_BALANCE} was assumed, since `shared` was not given: where some are rare, the gain is"
    " smaller."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Advice:
    """What profiles say about a federation.

    Distances are of a cohort's mean profile from everyone's, root mean squares over 200 cohorts, in
    the coordinates of `match`: a typical client is at about the root of the number of directions.

    Attributes
    ----------
    clients, k : int
        Clients, and how many a round asks.
    lost : float
        The share of them that does not answer.
    kinds : int or None
        How many kinds of clients there seem to be, or of how many their data are mixed; None where
        there is no clear number.
    distances : dict of float
        Of uniform cohorts (``fedavg``), ``dp3s`` and ``match``.
    best : float
        Of the closest cohort that was found, everybody answering.
    noise : float
        About how far a random sample of everyone's data is that is as large as a cohort's; to match
        more closely is to match noise.
    equal_cohort : int
        The size from which on uniform cohorts are as close as those of `match` with k.
    spread : float
        How far uniform cohorts are off, relative to the length of everyone's mean profile.
    left : float
        The share of that which `match` leaves.
    gradient_spread : float or None
        How far the gradient of a uniform cohort is off, relative to the root mean square of
        samples' gradients about their mean; None where no agreements were given.
    shared : float or None
        The agreement of what all clients have together; None where it was taken for 0.
    gain : float or None
        Rounds of uniform sampling over those of `match`, predicted; None where there are no
        agreements, and profiles differ so much more than those of the calibration that nothing can
        be said.

    Examples
    --------
    >>> kinds = np.repeat(np.eye(5), 8, axis=0) + 0.1
    >>> advise(kinds, k=5).kinds
    5
    """

    clients: int
    k: int
    lost: float
    kinds: int | None
    distances: Mapping[str, float]
    best: float
    noise: float
    equal_cohort: int
    spread: float
    left: float
    gradient_spread: float | None
    shared: float | None
    gain: float | None

    @property
    def rounds_to_repay(self) -> float:
        """Rounds of uniform sampling from which on `match` saves more bytes than profiling costs.

        Profiling sends the model to every client once; a round sends it to k and back.
        """
        if self.gain is None or self.gain <= 1:
            return math.inf
        return self.clients / (2 * self.k) / (1 - 1 / self.gain)

    @property
    def recommendation(self) -> str:
        """One sentence: what to do."""
        if self.k == self.clients:
            return "Everybody is asked in every round, so there is nothing to select."
        if self.gain is None:
            return (
                "No gain can be predicted, since these profiles differ far more than mean outputs"
                " of a layer do: compare match with fedavg in a short run."
            )
        if self.gain >= _CLEAR:
            return (
                f"Select with match: about {self.gain:.1f} times as fast as uniform sampling, which"
                f" would need cohorts of {self.equal_cohort} to be as close."
            )
        if self.gain >= _SLIGHT:
            return (
                f"Try match: about {self.gain:.1f} times as fast as uniform sampling, which pays in"
                f" trainings of more than {math.ceil(self.rounds_to_repay)} rounds."
            )
        if self.gradient_spread is not None:
            return (
                f"Stay with uniform sampling: match would be about {self.gain:.2f} times as fast,"
                " which does not pay for profiles."
            )
        return (
            "Stay with uniform sampling: as far as these profiles tell, match would be about"
            f" {self.gain:.2f} times as fast, which does not pay for them. Of photographs, whose"
            " classes an untrained model hardly tells apart, they tell little: compare both there."
        )

    @property
    def cannot_know(self) -> str:
        """What the advice does not rest on."""
        if self.gradient_spread is None:
            return _PROFILES_CANNOT_KNOW
        return _AGREEMENTS_CANNOT_KNOW + (_ASSUMES_BALANCE if self._assumes_balance else "")

    @property
    def _assumes_balance(self) -> bool:
        return self.gradient_spread is not None and self.shared is None

    @property
    def line(self) -> str:
        """All of it in one line, for a log."""
        few = {None: "", 1: ", all of one kind"}
        kinds = few.get(self.kinds, f", about {self.kinds} kinds")
        uniform, match = self.distances["fedavg"], self.distances["match"]
        if_so = f" That is so if {_BALANCE}." if self._assumes_balance else ""
        return (
            f"{self.clients} clients{kinds}; cohorts of {self.k} are {uniform:.2f} from everyone if"
            f" uniform, {match:.2f} by match. {self.recommendation}{if_so}"
        )

    def __str__(self) -> str:
        few = {
            None: "There is no clear number of kinds of clients.",
            1: "They seem to be of one kind.",
        }
        seem = few.get(
            self.kinds, f"There seem to be {self.kinds} kinds of clients, or of what they mix."
        )
        lost = f", of whom {self.lost:.0%} do not answer" if self.lost else ""
        head = f"{self.clients} clients, cohorts of {self.k}{lost}. {seem}\n"
        if self.k == self.clients:
            return _printed(f"{head}\n{self.recommendation}")
        rows = [("uniform (fedavg)", self.distances["fedavg"])]
        rows += [(rule, self.distances[rule]) for rule in RULES[1:]]
        rows += [("best cohort found", self.best), ("noise of samples", self.noise)]
        table = "\n".join(f"  {name:<18}{value:6.2f}" for name, value in rows)
        gain = (
            ""
            if self.gain is None
            else f"Predicted gain of match over uniform sampling: {self.gain:.2f} times as fast.\n"
        )
        felt = (
            ""
            if self.gradient_spread is None
            else f"Their gradients are off by {self.gradient_spread:.1%} of a sample's.\n"
        )
        return _printed(
            f"{head}\nHow far a cohort's mean profile is from everyone's:\n{table}\n"
            f"\nUniform cohorts of {self.equal_cohort} or more are as close as match's.\n"
            f"Those of {self.k} are off by {self.spread:.1%} of the mean profile, and match leaves"
            f" {self.left:.0%} of that.\n{felt}{gain}"
            f"\n{self.recommendation}\n{self.cannot_know}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        repay = self.rounds_to_repay
        return {
            **dataclasses.asdict(self),
            "spread": self.spread if math.isfinite(self.spread) else None,
            "rounds_to_repay": None if math.isinf(repay) else math.ceil(repay),
            "recommendation": self.recommendation,
            "cannot_know": self.cannot_know,
        }


def _printed(text: str) -> str:
    """Return a text with lines as long as the terminal's at most, and a space before "%"."""
    width = min(shutil.get_terminal_size().columns, _WIDTH)
    # Lines are not broken at a no-break space.
    lines = text.replace("%", "\xa0%").splitlines()
    return "\n".join(textwrap.fill(line, width) for line in lines).replace("\xa0", " ")


def advise(
    profiles: ArrayLike,
    sizes: ArrayLike | None = None,
    k: int = 10,
    *,
    lost: float = 0.0,
    agreements: ArrayLike | None = None,
    shared: float | None = None,
) -> Advice:
    """Say from profiles whether selection is worth it in a federation, before anything is trained.

    Parameters
    ----------
    profiles : array_like [C, Q]
        What each client would send once: mean outputs of a layer, as `fedcohort.profiles` has them.
    sizes : array_like [C], optional
        Samples of each client; equal if not given.
    k : int
        Clients that a round asks.
    lost : float
        The share of them that does not answer, from 0 to below 1.
    agreements : array_like [C], optional
        How far the gradients of each client's samples agree, from 0 to 1, as
        `fedcohort.profiles.agreement` has them. With them the predicted gain is far better; see
        docs/advise.md.
    shared : float, optional
        The agreement of what all clients have together, from 0 to below 1. It is 0 where all
        classes are equally frequent over all clients, as is assumed, and said, where it is not
        given; where some are rare, 0 makes the gain too large.

    Examples
    --------
    >>> import numpy as np
    >>> from fedcohort import advise
    >>> rng = np.random.default_rng(0)
    >>> kinds = 10 + rng.normal(size=(5, 20))
    >>> profiles = kinds[np.arange(60) % 5] + 0.05 * rng.normal(size=(60, 20))
    >>> advice = advise(profiles, k=5)
    >>> advice.kinds
    5
    >>> advice.distances["match"] < advice.distances["fedavg"] / 2
    True
    >>> advise(profiles, k=5, agreements=np.full(60, 0.9)).gain > 1.5  # kinds are classes
    True
    >>> advise(profiles, k=5, agreements=np.full(60, 0.01)).gain < 1.1  # kinds are styles
    True
    """
    within = Interval(0, 1, closed="left")
    common = 0.0 if shared is None else shared
    for name, value in {"lost": lost, "shared": common}.items():
        if not within(value):
            raise InvalidParameterError(f"{name} must be {within}, not {value!r}.")
    # The selectors refuse what cannot be a profile, a size or a cohort, in words.
    first = make_selector("match").fit(profiles, sizes=sizes)
    first.select(k, rng=generator(0, "advice", 0))
    table = np.asarray(profiles, np.float64)
    counts = np.ones(len(table)) if sizes is None else np.asarray(sizes, np.float64)
    between = _between_clients(agreements, counts, common)
    everyone, most = len(table), max(_CLIENTS, _CLIENTS_PER_PLACE * k)
    if everyone > most:
        rows = np.sort(generator(0, "advice clients").choice(everyone, most, replace=False))
        table, counts = table[rows], counts[rows]
    return _advice(table, counts, k, lost, (between, shared), everyone)


def _advice(
    table: Floats,
    counts: Floats,
    k: int,
    lost: float,
    agreed: tuple[float | None, float | None],
    everyone: int,
) -> Advice:
    """Return the advice on a sample of `everyone`: profiles [C, Q] and sizes [C]."""
    between, shared = agreed
    cohorts = {rule: cohort_weights(rule, table, counts, k, lost) for rule in RULES}
    closest = cohort_weights(_BEST, table, counts, k, 0.0)

    basis, share = Basis.fit(table, counts), counts / counts.sum()
    plain = basis.project(table)
    plain -= share @ plain
    scales = basis.scales(k)
    points = plain * scales
    distances = {rule: _rms(weights @ points) for rule, weights in cohorts.items()}
    uniform, matched = (_rms(cohorts[rule] @ plain) for rule in ("fedavg", "match"))
    mean = float(np.linalg.norm(share @ (table / basis.unit)))
    rounding = (_ROUNDING * _rms(table / basis.unit)) ** 2
    spread = uniform / mean if mean > 0 else (math.inf if uniform > 0 else 0.0)
    left = matched / uniform if uniform > 0 else 1.0
    gradient_spread = None
    if between is not None:
        apart = math.sqrt(share @ np.sum(plain**2, axis=1))
        gradient_spread = math.sqrt(between) * uniform / apart if apart > 0 else 0.0
    return Advice(
        clients=everyone,
        k=k,
        lost=lost,
        kinds=_kinds(
            basis.variances[basis.variances > rounding], min(len(table) - 1, table.shape[1])
        ),
        distances=distances,
        best=float(np.linalg.norm(closest @ points, axis=1).min()),
        noise=math.sqrt(float(scales @ scales) * basis.floor(k) / (k * (1 - lost))),
        equal_cohort=_equal_cohort(distances["fedavg"], distances["match"], k, lost, everyone),
        spread=spread,
        left=left,
        gradient_spread=gradient_spread,
        shared=shared,
        gain=predicted_gain(spread, left, gradient_spread),
    )


def predicted_gain(
    spread: float, left: float, gradient_spread: float | None = None
) -> float | None:
    """Return how many times as fast `match` is expected to be.

    Parameters
    ----------
    spread : float
        How far uniform cohorts are from everyone; see `Advice`.
    left : float
        The share of that which `match` leaves.
    gradient_spread : float, optional
        How far uniform cohorts' gradients are off; it takes the place of `spread`.

    Returns
    -------
    float or None
        None where profiles are spread too far for a prediction from them alone.

    Examples
    --------
    >>> round(predicted_gain(0.1, 0.2), 2)
    1.84
    >>> round(predicted_gain(0.1, 0.2, gradient_spread=0.28), 2)
    2.09
    """
    if gradient_spread is not None:
        return float(gain_of(OTHER_GRADIENT_ERROR, gradient_spread, left))
    if spread > _LARGEST_SPREAD:
        return None
    return float(gain_of(OTHER_ERROR, spread, left))


def gain_of(other: float | Floats, uniform: float | Floats, left: float | Floats) -> float | Floats:
    """Return the gain that the formula gives with any constant, as studies fit it.

    Parameters
    ----------
    other : float or array
        s, what disturbs training and selection does not change.
    uniform : float or array
        u, how far uniform cohorts are off.
    left : float or array
        The share of that which `match` leaves.

    Examples
    --------
    >>> gain_of(0.2, 0.2, 0.0)
    2.0
    """
    return (other**2 + uniform**2) / (other**2 + (uniform * left) ** 2)


def _between_clients(agreements: ArrayLike | None, sizes: Floats, shared: float) -> float | None:
    """Return which share of the variance of samples' gradients lies between clients."""
    if agreements is None:
        return None
    try:
        values = np.asarray(agreements, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"agreements must be numbers from 0 to 1: {error}.") from error
    if values.shape != sizes.shape:
        raise InvalidInputError(
            f"agreements must have one number for each of the {len(sizes)} clients, not the shape"
            f" {values.shape}."
        )
    wrong = np.flatnonzero(~((values >= 0) & (values <= 1 + _ROUNDING)))
    if len(wrong):
        raise InvalidInputError(
            f"agreements must be numbers from 0 to 1, and that of client {wrong[0]} is"
            f" {values[wrong[0]]}."
        )
    mean = float(np.average(values, weights=sizes))
    return min(1.0, max(0.0, (mean - shared) / (1 - shared)))


def cohort_weights(rule: str, profiles: Floats, sizes: Floats, k: int, lost: float) -> Floats:
    """Return the weights of all clients in 200 consecutive cohorts of a rule.

    Parameters
    ----------
    rule : str
        A selector that needs profiles at most.
    profiles, sizes, k, lost
        As in `advise`, but arrays of float64.

    Returns
    -------
    float64 [200, C]
        0 for those who are not in a cohort or do not answer.

    Examples
    --------
    >>> weights = cohort_weights("match", np.repeat(np.eye(5), 8, axis=0), np.ones(40), 5, 0.0)
    >>> bool(np.allclose(weights.sum(axis=1), 1))
    True
    """
    selector: Selector = make_selector(rule).fit(profiles, sizes=sizes)
    weights = np.zeros((_COHORTS, len(sizes)))
    for round_ in range(_COHORTS):
        rng = generator(0, "advice", round_)
        cohort = selector.select(k, rng=rng)
        answered: NDArray[np.bool_] = rng.random(k) >= lost
        # Somebody who counts: matched weights may be 0.
        count = np.flatnonzero(cohort.weights)
        answered[rng.choice(count)] |= not answered[count].any()
        selector.observe(Outcome(cohort.ids, answered))
        counted = cohort.weights * answered
        weights[round_, cohort.ids] = counted / counted.sum()
    return weights


def _rms(rows: Floats) -> float:
    return float(np.sqrt(np.mean(np.sum(rows**2, axis=1))))


def _kinds(variances: Floats, possible: int) -> int | None:
    """Return one more than the directions before the largest gap, if that is a clear one."""
    if len(variances) == 0:
        return 1
    if len(variances) < min(possible, DIRECTIONS):
        # The next direction has no variance beyond rounding.
        variances = np.append(variances, 1e-12 * variances[0])
    falls = variances[:-1] / variances[1:]
    if len(falls) == 0 or falls.max() < _GAP:
        return None
    return int(np.argmax(falls)) + 2


def _equal_cohort(uniform: float, match: float, k: int, lost: float, clients: int) -> int:
    """Return how many clients uniform sampling must ask to be as close as `match` with k.

    The square of its distance is A (1 / m - 1 / C) when m of C clients answer.
    """
    answering = k * (1 - lost)
    if match >= uniform or answering >= clients:
        return k
    slope = uniform**2 / (1 / answering - 1 / clients)
    wanted = 1 / (match**2 / slope + 1 / clients)
    return min(clients, math.ceil(wanted / (1 - lost) - 1e-9))
