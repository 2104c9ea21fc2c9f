"""What real clients do to a round: they are away, slow, or drop out.

Time is counted in units of the work that a client of median speed and average size does in one pass
over its data, so that no hardware has to be assumed. Client c takes

    t_c = passes · (n_c / mean n) · exp(s · z_c + s/2 · z_ct),   z_c, z_ct ~ N(0, 1)

in round t, where s is the speed spread: some clients are always slow, and everyone sometimes.

The server asks for ⌈over-selection · k⌉ clients and ends the round when k have answered, when the
deadline passes, or when nobody else will answer, whichever comes first. Later answers are not used.
Every draw is a function of (seed, purpose, round, client).
"""

import dataclasses
import math
from pathlib import Path

import numpy as np
import scipy  # its parts are loaded when they are used
from numpy.typing import NDArray

from fedcohort.errors import InvalidParameterError
from fedcohort.randomness import hashed_keys

Ids = NDArray[np.int64]

# Rounds of a day, in traces that follow one.
_DAY = 24


@dataclasses.dataclass(frozen=True)
class Attendance:
    """How a round ended.

    Attributes
    ----------
    answered : bool [m]
        Whose answer came in time and was used.
    durations : float64 [m]
        How long each client takes, whether it answered or not.
    elapsed : float
        How long the round took.
    """

    answered: NDArray[np.bool_]
    durations: NDArray[np.float64]
    elapsed: float


@dataclasses.dataclass(frozen=True)
class Availability:
    """Who is there in each round.

    Attributes
    ----------
    share : float
        The share of clients that is there, on average.
    daily : bool
        Whether each client is there in the same hours every day, or at random.
    trace : bool [T, C], optional
        Who was there in T rounds that repeat; `share` and `daily` do not matter then.
    """

    share: float = 1.0
    daily: bool = False
    trace: NDArray[np.bool_] | None = None

    def check(self, clients: int) -> None:
        """Refuse a trace of other clients than the federation's."""
        if self.trace is not None and self.trace.shape[1] != clients:
            raise InvalidParameterError(
                f"The availability trace has {self.trace.shape[1]} clients where the federation has"
                f" {clients}: give a trace of as many columns."
            )

    def of(self, seed: int, round_: int, clients: int) -> Ids | None:
        """Return the clients that are there, int64 [m]; None is everyone."""
        if self.trace is not None:
            return np.flatnonzero(self.trace[(round_ - 1) % len(self.trace)])
        if self.share >= 1:
            return None
        everyone = np.arange(clients)
        if self.daily:
            hour = _uniform(seed, "day", everyone) + round_ / _DAY
            return np.flatnonzero(hour % 1.0 < self.share)
        return np.flatnonzero(_uniform(seed, "available", round_, everyone) < self.share)


def parse_availability(text: str) -> Availability:
    """Read ``always``, a share such as ``0.7``, ``daily:0.5``, or the path of a trace.

    A trace is a ``.npy`` file of zeros and ones, one row a round and one column a client.
    """
    if text == "always":
        return Availability()
    if text.endswith(".npy"):
        return Availability(trace=_read_trace(Path(text)))
    kind, _, number = text.rpartition(":")
    try:
        share = float(number)
    except ValueError:
        share = math.nan
    if kind not in ("", "daily") or not 0 < share <= 1:
        raise InvalidParameterError(
            f"availability of the run must be always, a share above 0 and at most 1, daily:SHARE"
            f" or a .npy file, not {text!r}."
        )
    return Availability(share, daily=kind == "daily")


def _read_trace(path: Path) -> NDArray[np.bool_]:
    try:
        trace = np.load(path)
    except (OSError, ValueError) as error:
        raise InvalidParameterError(
            f"The availability trace {str(path)!r} cannot be read ({error}): give a .npy file."
        ) from error
    if trace.ndim != 2 or trace.size == 0 or not np.isin(trace, (0, 1)).all():
        raise InvalidParameterError(
            f"The availability trace {str(path)!r} must hold zeros and ones, one row a round and"
            " one column a client."
        )
    there: NDArray[np.bool_] = trace.astype(bool)
    return there


def over_selected(k: int, factor: float, there: int) -> int:
    """Return how many clients to ask, so that k answer: at most as many as are there."""
    # A hair less, so that 1.1 · 10 is 11 and not 12.
    return min(math.ceil(k * factor - 1e-9), there)


def attend(
    seed: int,
    round_: int,
    ids: Ids,
    work: NDArray[np.float64],
    wanted: int,
    *,
    able: NDArray[np.bool_],
    spread: float,
    dropout: float,
    deadline: float | None,
) -> Attendance:
    """Say who of a cohort `ids` [m] answers in time.

    `work` [m] is what each is to do, in passes over an average client's data, and `able` [m] who
    can; the others never answer. The round ends after `wanted` answers, or at the `deadline`;
    `spread` is that of speeds, and `dropout` the probability that a client does not answer.
    """
    durations, answers = work, able
    if spread == 0 and dropout == 0 and deadline is None and wanted >= len(ids) and able.all():
        # Nobody can be late: the usual case, which costs a part of a short round otherwise.
        return Attendance(answers, durations, float(durations.max(initial=0.0)))
    if spread > 0:
        slowness = spread * scipy.special.ndtri(_uniform(seed, "speed", ids))
        slowness += spread / 2 * scipy.special.ndtri(_uniform(seed, "pace", round_, ids))
        durations = work * np.exp(slowness)
    if dropout > 0:
        answers = able & (_uniform(seed, "dropout", round_, ids) >= dropout)
    times = np.where(answers, durations, np.inf)
    limit = np.inf if deadline is None else deadline
    # Ties are broken by the order of ids, which is ascending.
    first = np.argsort(times, kind="stable")[:wanted]
    answered = np.zeros(len(ids), bool)
    answered[first] = answers[first] & (times[first] <= limit)
    if answered.sum() == wanted or answered.all():
        elapsed = float(times[answered].max(initial=0.0))
    elif deadline is not None:
        elapsed = deadline
    else:
        # Without a deadline the server learns of a drop-out when that client was due.
        elapsed = float(durations.max(initial=0.0))
    return Attendance(answered, durations, elapsed)


def _uniform(seed: int, purpose: str, *key: int | Ids) -> NDArray[np.float64]:
    """Return one number in (0, 1) a key, hashed: a million clients cost a few milliseconds."""
    bits = hashed_keys(seed, purpose, *key).astype(np.uint64) >> np.uint64(11)
    return (bits.astype(np.float64) + 0.5) * 2.0**-53
