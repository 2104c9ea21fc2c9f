"""What a selector is: its declaration, its life, and the values it exchanges."""

import dataclasses
import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.errors import (
    CohortSizeError,
    InvalidCohortError,
    InvalidInputError,
    InvalidProfilesError,
    MissingKnowledgeError,
    NoClientsAvailableError,
    UnknownClientError,
)
from fedcohort.parameters import check_parameters
from fedcohort.randomness import check_generator
from fedcohort.selection.roster import Ids, Roster, Rows

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# More samples than anybody has; sums and products of larger sizes would overflow.
_LARGEST_SIZE = 1e15


class Need(enum.Enum):
    """Something about a client that a selector may ask for; it is told nothing else of clients.

    Examples
    --------
    >>> from fedcohort import Match
    >>> [need.value for need in Match.needs]
    ['profile']
    """

    PROFILE = "profile"
    LOSS = "loss"
    UPDATE = "update"
    LABEL_COUNTS = "label_counts"
    DURATION = "duration"


@dataclasses.dataclass(frozen=True)
class Cohort:
    """The clients that train in one round.

    Attributes
    ----------
    ids : int64 [m]
        Who trains. An id may stand there twice only if its selector declares `repeats`.
    weights : float64 [m]
        Aggregation weights, one per place in `ids`.
    work : float64 [m, 2], optional
        The easy and the hard task of each client, in passes over its data, from selectors that
        also decide how much a client does; None leaves that to the run.
    sized : bool
        Whether the weights are n_c / Σ n_c, so that an engine may go by sizes that it knows better.

    Examples
    --------
    >>> len(Cohort(ids=np.array([3, 8]), weights=np.array([0.4, 0.6])))
    2
    """

    ids: Ids
    weights: Floats
    work: Floats | None = None
    sized: bool = False

    def __len__(self) -> int:
        return len(self.ids)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a cohort.

    Attributes
    ----------
    ids : int64 [m]
        The distinct clients that were asked to train.
    trained : bool [m]
        Who sent back a usable update.
    losses : float64 [m], optional
        The loss that each sent with its update (see `Selector.reported_loss`); NaN where there is
        none.
    updates : float32 [m, d], optional
        Local minus global parameters.
    durations : float64 [m], optional
        How long each client took, in seconds or, in simulations, in simulated time; NaN where
        there is none.
    passes : float64 [m], optional
        Passes over its data that each client completed (0: dropped out).
    capacity : float64 [m], optional
        Passes that each client could have afforded in this round.

    Examples
    --------
    >>> from fedcohort import FedAvg
    >>> selector = FedAvg().fit(clients=100)
    >>> selector.observe(Outcome(np.array([3, 8]), np.array([True, False])))
    """

    ids: Ids
    trained: Bools
    losses: Floats | None = None
    updates: NDArray[np.float32] | None = None
    durations: Floats | None = None
    passes: Floats | None = None
    capacity: Floats | None = None


@dataclasses.dataclass(kw_only=True, eq=False)
class Selector(ABC):
    """Picks the cohort of each round.

    A selector's life: clients `join` and `leave` (`fit` lets clients 0..C-1 join at once); each
    round, `ask` names what it must hear first and `tell` answers, `select` returns a cohort, and
    `observe` hears what came of it. `state` and `restore` save all of it and bring it back.

    A subclass declares `needs` (and, in `asks_newcomers`, the one that every client must have told
    before it can choose) and writes `_choose`; its parameters are dataclass fields. If it needs
    losses, `reported_loss` says which one participants send with their update: the mean of those
    seen in training, that of the model they received, or none; if it needs updates but keeps a few
    numbers of each at most, `forgets_updates` says so, and more runs are simulated at once. Where a
    later version of the same rule chooses other cohorts it counts up `revision` (of those objects
    alone whose parameters are concerned), so that runs of the old one in a store are not taken for
    runs of the new one.

    Examples
    --------
    >>> class First(Selector):
    ...     def _choose(self, k, rows, rng):
    ...         return self._cohort(rows[:k])
    >>> First().fit(clients=100).select(3, rng=np.random.default_rng(0)).ids
    array([0, 1, 2])
    """

    name: ClassVar[str]
    revision: ClassVar[int] = 1
    needs: ClassVar[frozenset[Need]] = frozenset()
    repeats: ClassVar[bool] = False
    asks_newcomers: ClassVar[Need | None] = None
    reported_loss: ClassVar[Literal["training", "received"] | None] = "training"
    needs_labels: ClassVar[bool] = False
    forgets_updates: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # A registered name replaces this one.
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def __post_init__(self) -> None:
        check_parameters(self, f"selector {self.name!r}")
        self._roster = Roster()

    # -- who is there ----------------------------------------------------------------------

    @property
    def clients(self) -> Ids:
        """The ids of all clients [C]."""
        return self._roster.ids

    def fit(
        self,
        profiles: ArrayLike | None = None,
        *,
        sizes: ArrayLike | None = None,
        label_counts: ArrayLike | None = None,
        clients: int | None = None,
    ) -> Self:
        """Start afresh with clients 0..C-1.

        Parameters
        ----------
        profiles : array_like [C, Q], optional
            One profile per client; needed if the selector declares `Need.PROFILE`.
        sizes : array_like [C], optional
            Samples that each client holds; equal if not given.
        label_counts : array_like [C, N], optional
            Samples of each class; needed only by selectors that declare `Need.LABEL_COUNTS`.
        clients : int, optional
            C, where none of the arrays says it.
        """
        given = {"profiles": profiles, "sizes": sizes, "label_counts": label_counts}
        told = {name: _as_numbers(a, name) for name, a in given.items() if a is not None}
        lengths = {len(np.atleast_1d(array)) for array in told.values()}
        lengths |= set() if clients is None else {clients}
        if len(lengths) != 1:
            found = [f"{name} has shape {list(array.shape)}" for name, array in told.items()]
            found += [] if clients is None else [f"clients is {clients}"]
            raise InvalidInputError(
                "profiles, sizes and label_counts must speak of the same clients, but"
                f" {' and '.join(found)}."
                if lengths
                else "Nothing says how many clients there are: pass profiles, sizes or clients=C."
            )
        self._roster = Roster()
        self._forget()
        self.join(np.arange(lengths.pop()), **told)
        return self

    def join(
        self,
        ids: ArrayLike,
        profiles: ArrayLike | None = None,
        *,
        sizes: ArrayLike | None = None,
        label_counts: ArrayLike | None = None,
    ) -> None:
        """Let clients in; shapes as in `fit`, one row per id."""
        joining = _as_ids(ids)
        columns: dict[str, NDArray[Any]] = {"size": _as_sizes(sizes, joining)}
        given = {Need.PROFILE: profiles, Need.LABEL_COUNTS: label_counts}
        for need, values in given.items():
            if need not in self.needs:
                continue
            if values is None:
                raise MissingKnowledgeError(
                    f"Selector {self.name!r} needs the {need.value} of every client: pass it when"
                    " clients join."
                )
            columns[need.value] = self._checked(need, joining, values)
        self._joined(self._roster.add(joining, columns))

    def leave(self, ids: ArrayLike) -> None:
        """Let clients go, with all that is known of them."""
        self._roster.remove(_as_ids(ids))
        self._left()

    def resize(self, ids: ArrayLike, sizes: ArrayLike) -> None:
        """Replace the sizes [m] of clients `ids` [m]."""
        who = _as_ids(ids)
        rows, new = self._roster.rows(who), _as_sizes(sizes, who)
        if not np.array_equal(self._roster["size"][rows], new):
            self._roster.put("size", rows, new)
            self._forget()

    def label(self, client: int, labels: Iterable[str]) -> None:  # noqa: B027
        """Hear a client's name and tags; only `fedcohort.selection.wrappers` look at them."""

    def eligible(self, ids: ArrayLike) -> Ids:
        """Return those of the clients `ids` that may be chosen at all."""
        return _as_ids(ids)

    @property
    def sizes(self) -> Floats:
        """How many samples each of `clients` holds [C]."""
        return self._roster["size"]

    @property
    def suspects(self) -> Mapping[int, str]:
        """Why clients are left out, by id."""
        return {}

    @property
    def innermost(self) -> "Selector":
        """The selector that chooses: this one, unless it is wrapped around another."""
        return self

    # -- each round ------------------------------------------------------------------------

    def ask(
        self,
        k: int,
        available: ArrayLike | None = None,
        *,
        rng: np.random.Generator,  # noqa: ARG002
    ) -> Mapping[Need, Ids]:
        """Name what must be told, and of whom, before the next `select`.

        By default that is `asks_newcomers`, of every available client that has never told it.
        """
        need = self.asks_newcomers
        if need is None:
            return {}
        rows = self._candidates(k, available)
        if need.value in self._roster:
            told = self._roster[need.value]
            rows = rows[np.isnan(told[rows] if told.ndim == 1 else told[rows, 0])]
        return {need: self._roster.ids[rows]} if len(rows) else {}

    def tell(self, need: Need, ids: ArrayLike, values: ArrayLike) -> None:
        """Answer `ask`, or replace what is known: `values` [m, ...] of clients `ids` [m]."""
        rows = self._roster.rows(_as_ids(ids))
        told = self._checked(need, _as_ids(ids), values)
        if need in self.needs:
            self._roster.define(need.value, np.nan, told.shape[1:], told.dtype)
            self._roster.put(need.value, rows, told)
            self._told(need, rows)

    def select(
        self, k: int, available: ArrayLike | None = None, *, rng: np.random.Generator
    ) -> Cohort:
        """Choose a cohort of `k` clients.

        Parameters
        ----------
        k : int
            Places in the cohort.
        available : array_like of int, optional
            Ids to choose among; everyone if not given.
        rng : numpy.random.Generator
            The only source of chance: the same state and generator give the same cohort.
        """
        check_generator(rng)
        rows = self._candidates(k, available)
        chosen = self._choose(k, rows, rng)
        if problem := self._problem_of(chosen, k, rows):
            raise InvalidCohortError(self.name, problem)
        return chosen

    def observe(self, outcome: Outcome) -> None:
        """Hear what came of the last cohort; what the selector declares to need is remembered."""
        heard = {
            Need.LOSS: outcome.losses,
            Need.UPDATE: outcome.updates,
            Need.DURATION: outcome.durations,
        }
        if self.reported_loss is None:
            del heard[Need.LOSS]
        for need, values in heard.items():
            if need not in self.needs or values is None:
                continue
            # The model that a client received may have no finite loss, and train nonetheless.
            known = outcome.trained & (
                np.isfinite(np.asarray(values, np.float64)) if need is Need.LOSS else True
            )
            if known.any():
                self.tell(need, outcome.ids[known], values[known])

    @property
    def asks(self) -> bool:
        """Whether it may have to ask clients something before it chooses."""
        return type(self).ask is not Selector.ask or self.asks_newcomers is not None

    def work_of(self, ids: ArrayLike) -> Floats | None:  # noqa: ARG002
        """Return the tasks [m, 2] of clients, as in `Cohort`; None leaves them to the run."""
        return None

    # -- saving ----------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything that `restore` needs, as plain arrays."""
        return self._roster.save()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from a saved `state`, as if nothing had happened in between."""
        self._forget()
        self._roster = Roster.load(state)

    def describe(self) -> dict[str, Any]:
        """Say how the selector is working, for reports: plain values by name."""
        return {}

    # -- for subclasses --------------------------------------------------------------------

    @abstractmethod
    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        """Choose among the clients in `rows` (at least `k` of them)."""

    def _joined(self, rows: Rows) -> None:  # noqa: B027
        """Hear that clients joined in `rows`."""

    def _left(self) -> None:  # noqa: B027
        """Hear that clients left; rows may have moved."""

    def _told(self, need: Need, rows: Rows) -> None:  # noqa: B027
        """Hear that a column changed in `rows`."""

    def _forget(self) -> None:  # noqa: B027
        """Drop what was derived from the roster."""

    def _cohort(self, rows: Rows | Sequence[int], weights: ArrayLike | None = None) -> Cohort:
        """Make a cohort of `rows`; weights n_c / Σ n_c unless given."""
        sized = weights is None
        if weights is None:
            sizes = self._roster["size"][rows]
            weights = sizes / sizes.sum()
        return Cohort(self._roster.ids[rows], np.asarray(weights, np.float64), sized=sized)

    def _last_losses(self, rows: Rows) -> Floats:
        """Return the last known losses [m]; a client that told none counts as an average one."""
        self._roster.define(Need.LOSS.value, np.nan)
        losses: Floats = self._roster[Need.LOSS.value][rows]
        unknown = np.isnan(losses)
        return np.where(unknown, losses[~unknown].mean() if not unknown.all() else 0.0, losses)

    def _candidates(self, k: int, available: ArrayLike | None) -> Rows:
        if available is None:
            rows = np.arange(len(self._roster))
        else:
            # Sorted rows make the draw a function of who is available, not of the order given.
            rows = np.unique(self._roster.rows(_as_ids(available)))
        if len(rows) == 0:
            raise NoClientsAvailableError(
                f"Selector {self.name!r} has no client to choose from: wait until some are"
                " available."
            )
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= len(rows):
            told = repr(k) if isinstance(k, str) else k
            raise CohortSizeError(
                f"A cohort of {told} cannot be chosen from {len(rows)} available clients: take a"
                f" whole number k between 1 and {len(rows)}."
            )
        return rows

    def _problem_of(self, cohort: Cohort, k: int, rows: Rows) -> str | None:
        """Say what keeps a cohort chosen among `rows` from being trained."""
        if not isinstance(cohort, Cohort):
            return f"it returned {type(cohort).__name__}, not a Cohort"
        ids, weights = cohort.ids, cohort.weights
        for name, values, kind in (("ids", ids, "int64"), ("weights", weights, "float64")):
            found = getattr(values, "dtype", type(values).__name__)
            if found != kind:
                return f"its {name} are {found}, not {kind}"
            if values.shape != (k,):
                return f"its {name} have shape {list(values.shape)}, not [{k}]"
        try:
            chosen = self._roster.rows(ids)
        except UnknownClientError as error:
            return str(error).rstrip(".")
        # Candidates are sorted.
        there = rows[np.minimum(np.searchsorted(rows, chosen), len(rows) - 1)] == chosen
        if not there.all():
            return f"client {ids[~there][0]} is not there to be chosen"
        if not self.repeats and len(np.unique(ids)) < k:
            return "a client stands there twice, and it does not declare repeats"
        if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
            return f"its weights are {weights}, not numbers from 0 on of which one is above"
        work = cohort.work
        if work is not None and (np.shape(work) != (k, 2) or not np.min(work) > 0):
            return f"its work is not two numbers above 0 for each of {k} clients"
        return None

    def _checked(self, need: Need, ids: Ids, values: ArrayLike) -> NDArray[Any]:
        """Return `values` as an array [m, ...] of finite floats that fits the roster."""
        array = _as_numbers(values, f"The {need.value}")
        matrix = need in (Need.PROFILE, Need.UPDATE, Need.LABEL_COUNTS)
        if array.ndim != 1 + matrix or len(array) != len(ids) or 0 in array.shape[1:]:
            shape = f"[{len(ids)}, …]" if matrix else f"[{len(ids)}]"
            raise InvalidProfilesError(
                f"The {need.value} of {len(ids)} clients must have shape {shape}, not"
                f" {list(array.shape)}."
            )
        if need.value in self._roster and len(self._roster):
            width = self._roster[need.value].shape[1:]
            if array.shape[1:] != width:
                raise InvalidProfilesError(
                    f"The {need.value} of client {ids[0]} has {array.shape[1]} numbers where the"
                    f" others have {width[0]}: all clients must use the same model."
                )
        bad = _first_not_finite(array)
        if bad is not None:
            raise InvalidProfilesError(
                f"The {need.value} of client {ids[bad]} is not finite: have it sent again or leave"
                " that client out."
            )
        return array


def _first_not_finite(array: NDArray[Any]) -> int | None:
    # In slices: a mask of a million profiles at once would take as much memory as a copy.
    step = max(1, 2**22 // max(1, int(np.prod(array.shape[1:]))))
    for start in range(0, len(array), step):
        bad = ~np.isfinite(array[start : start + step]).reshape(
            len(array[start : start + step]), -1
        )
        if bad.any():
            return start + int(np.flatnonzero(bad.any(axis=1))[0])
    return None


def _as_ids(ids: ArrayLike) -> Ids:
    array = np.atleast_1d(np.asarray(ids))
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise InvalidInputError(
            f"Client ids must be a flat list of whole numbers, not {array.dtype} of shape"
            f" {list(array.shape)}."
        )
    return array.astype(np.int64)


def _as_numbers(values: ArrayLike, what: str) -> NDArray[Any]:
    """Return an array of floats; `what` names it in errors."""
    try:
        array = np.asarray(values)
        if array.dtype in (np.float32, np.float64):
            return array
        return array.astype(np.float64, casting="unsafe" if array.dtype == object else "same_kind")
    except (TypeError, ValueError) as error:
        raise InvalidProfilesError(f"{what} must be an array of numbers: {error}.") from error


def _as_sizes(sizes: ArrayLike | None, ids: Ids) -> Floats:
    if sizes is None:
        return np.ones(len(ids))
    array = _as_numbers(sizes, "sizes").astype(np.float64, copy=False)
    if array.shape != ids.shape:
        raise InvalidInputError(
            f"sizes must give one number per client: {len(ids)} clients, shape {list(array.shape)}."
        )
    bad = ~((array > 0) & (array <= _LARGEST_SIZE))
    if bad.any():
        raise InvalidInputError(
            f"Client {ids[bad][0]} has size {array[bad][0]:g}: a client must hold at least one"
            f" sample to be chosen, and at most {_LARGEST_SIZE:g}; leave it out."
        )
    return array
