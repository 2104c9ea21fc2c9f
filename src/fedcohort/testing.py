"""`check_selector`: what every selector must do, as one conformance suite.

A package that adds a selector calls it in its own tests::

    from fedcohort.testing import check_selector

    def test_conformance():
        check_selector(MyRule)
"""

import dataclasses
import io
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import (
    CohortSizeError,
    DuplicateClientError,
    InvalidCohortError,
    InvalidProfilesError,
    MissingKnowledgeError,
    NoClientsAvailableError,
    UnknownClientError,
)
from fedcohort.selection import Cohort, Need, Outcome, Selector, make_selector
from fedcohort.selection.asking import questions_of

__all__ = ["check_selector"]

Make = Callable[[], Selector]
Ids = NDArray[np.int64]

_CLASSES = 5
_FEATURES = 12
_PARAMETERS = 20


class _World:
    """Clients of five kinds that answer whatever a selector asks."""

    def __init__(self, clients: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.kind = np.arange(clients) % _CLASSES
        self.sizes = rng.integers(5, 60, clients).astype(float)
        centres = rng.normal(size=(_CLASSES, _FEATURES))
        self.profiles = centres[self.kind] + 0.1 * rng.normal(size=(clients, _FEATURES))
        directions = rng.normal(size=(_CLASSES, _PARAMETERS))
        noise = 0.1 * rng.normal(size=(clients, _PARAMETERS))
        self.updates = (directions[self.kind] + noise).astype(np.float32)
        self.label_counts = np.eye(_CLASSES)[self.kind] * self.sizes[:, None]
        self.losses = rng.uniform(0.5, 3.0, clients)
        self.durations = rng.uniform(1.0, 9.0, clients)
        self.ids = np.arange(clients)

    def fit(self, selector: Selector) -> Selector:
        return selector.fit(self.profiles, sizes=self.sizes, label_counts=self.label_counts)

    def join(self, selector: Selector, rows: Ids, ids: Ids) -> None:
        selector.join(
            ids,
            self.profiles[rows],
            sizes=self.sizes[rows],
            label_counts=self.label_counts[rows],
        )

    def answers(self, need: Need) -> NDArray[Any]:
        known: dict[Need, NDArray[Any]] = {
            Need.PROFILE: self.profiles,
            Need.LOSS: self.losses,
            Need.UPDATE: self.updates,
            Need.LABEL_COUNTS: self.label_counts,
            Need.DURATION: self.durations,
        }
        return known[need]

    def play(self, selector: Selector, k: int, round_: int, available: Ids | None = None) -> Cohort:
        """Do one round: answer, choose, check the cohort, observe."""
        rng = np.random.default_rng([round_, 7])
        for need, ids in questions_of(selector, k, available, rng=rng):
            selector.tell(need, ids, self.answers(need)[self._rows(ids)])
        cohort = selector.select(k, available, rng=rng)
        ids = np.unique(cohort.ids)
        rows = self._rows(ids)
        trained = np.arange(len(ids)) % 4 != 3
        passes = np.where(trained, 2.0, 0.0)
        if cohort.work is not None:
            easy = dict(zip(cohort.ids.tolist(), cohort.work[:, 0].tolist(), strict=True))
            passes = np.where(trained, [easy[i] for i in ids.tolist()], 0.0)
        losses = np.where(trained, self.losses[rows] * 0.9**round_, np.nan)
        durations = np.where(trained, self.durations[rows], np.nan)
        needs, reports = selector.needs, selector.reported_loss is not None
        selector.observe(
            Outcome(
                ids,
                trained,
                losses=losses if Need.LOSS in needs and reports else None,
                updates=self.updates[rows] if Need.UPDATE in needs else None,
                durations=durations if Need.DURATION in needs else None,
                passes=passes,
                capacity=passes + 0.5,
            )
        )
        return cohort

    def _rows(self, ids: Ids) -> Ids:
        return np.searchsorted(self.ids, ids)


def check_selector(selector: str | type[Selector] | Make) -> None:
    """Run the whole suite; the first failure raises an `AssertionError` that says what failed.

    Parameters
    ----------
    selector : str, class or callable
        A spec such as ``"dp3s:rank=8"`` or ``"my_selector.py:MySelector"``, a class, or a callable
        that makes a fresh selector.

    Examples
    --------
    >>> check_selector("match")
    """
    make: Make = (lambda: make_selector(selector)) if isinstance(selector, str) else selector
    for check in CHECKS:
        try:
            check(make)
        except (AssertionError, InvalidCohortError) as error:
            problem = getattr(error, "problem", error)
            raise AssertionError(f"{make().name}: {check.__name__}: {problem}") from error


def check_declaration(make: Make) -> None:
    """It says what it needs and whether it repeats clients."""
    made = make()
    undeclared = [n for n, v in vars(type(made)).items() if isinstance(v, dataclasses.Field)]
    assert not undeclared, f"{undeclared[0]} is no parameter, since the class is not a dataclass"
    assert isinstance(made.needs, frozenset), "needs must be a frozenset"
    assert all(isinstance(need, Need) for need in made.needs), "needs must hold Need values"
    assert isinstance(made.repeats, bool), "repeats must be True or False"
    known = ("training", "received", None)
    assert made.reported_loss in known, f"reported_loss must be one of {known}"


def check_cohorts(make: Make) -> None:
    """Cohorts have k places, known clients and usable weights, with equal and unequal sizes."""
    world = _World(23)
    selector = world.fit(make())
    for round_ in range(6):
        world.play(selector, 7, round_)


def check_extreme_sizes(make: Make) -> None:
    """A cohort of one, of everyone, and from a federation of one."""
    world = _World(11)
    selector = world.fit(make())
    world.play(selector, 1, 0)
    everyone = world.play(selector, 11, 1)
    if not selector.repeats:
        assert set(everyone.ids.tolist()) == set(range(11)), "k = C must choose everyone"
    lone = _World(1)
    assert lone.play(lone.fit(make()), 1, 0).ids.tolist() == [0], "one client, one choice"


def check_same_seed_same_cohort(make: Make) -> None:
    """Chance comes from `rng` alone."""
    world = _World(23)
    one, two = world.fit(make()), world.fit(make())
    for round_ in range(5):
        np.random.seed(round_)  # noqa: NPY002 (a selector must not look at it)
        first = world.play(one, 6, round_)
        np.random.seed(99 - round_)  # noqa: NPY002
        second = world.play(two, 6, round_)
        _assert_same(first, second, "the same seed gave two cohorts")


def check_chance_is_used(make: Make) -> None:
    """Different generators give different cohorts, so that every client can be met."""
    world = _World(23)
    met = {tuple(sorted(world.play(world.fit(make()), 6, t).ids.tolist())) for t in range(12)}
    assert len(met) > 1, "twelve generators gave one cohort"


def check_availability(make: Make) -> None:
    """Only available clients are chosen, and the order they are listed in does not matter."""
    world = _World(23)
    available = np.array([2, 3, 5, 7, 11, 13, 17, 19])
    one, two = world.fit(make()), world.fit(make())
    for round_ in range(5):
        first = world.play(one, 4, round_, available)
        _assert_same(
            first,
            world.play(two, 4, round_, available[::-1]),
            "the order of the available clients changed the cohort",
        )
    exact = world.play(one, len(available), 9, available)
    if not one.repeats:
        assert set(exact.ids) == set(available), "k = all available must choose all of them"


def check_refusals(make: Make) -> None:
    """What cannot be chosen is refused with its own error."""
    world = _World(9)
    selector = world.fit(make())
    rng = np.random.default_rng(0)
    nobody = np.empty(0, np.int64)
    _assert_raises(NoClientsAvailableError, lambda: selector.select(1, nobody, rng=rng))
    _assert_raises(CohortSizeError, lambda: selector.select(10, rng=rng))
    _assert_raises(CohortSizeError, lambda: selector.select(0, rng=rng))
    _assert_raises(CohortSizeError, lambda: selector.select(4, np.array([1, 2, 3]), rng=rng))
    _assert_raises(UnknownClientError, lambda: selector.select(1, np.array([77]), rng=rng))
    _assert_raises(UnknownClientError, lambda: selector.leave([77]))
    _assert_raises(DuplicateClientError, lambda: world.join(selector, np.array([0]), np.array([0])))


def check_profiles_are_checked(make: Make) -> None:
    """A missing, damaged or ill-shaped profile is refused, and the client is named."""
    world = _World(9)
    if Need.PROFILE not in make().needs:
        return
    sizes, counts = world.sizes, world.label_counts
    _assert_raises(MissingKnowledgeError, lambda: make().fit(sizes=sizes, label_counts=counts))
    damaged = world.profiles.copy()
    damaged[4, 2] = np.nan
    said = _assert_raises(
        InvalidProfilesError, lambda: make().fit(damaged, sizes=sizes, label_counts=counts)
    )
    assert "4" in said, "the error must name client 4"
    fitted = world.fit(make())
    short = world.profiles[:1, :-1]
    _assert_raises(
        InvalidProfilesError,
        lambda: fitted.join([50], short, sizes=[3], label_counts=counts[:1]),
    )
    assert 50 not in fitted.clients, "a refused client must not be a member"


def check_inputs_are_left_alone(make: Make) -> None:
    """The caller's arrays are never written to."""
    world = _World(15)
    before = [a.copy() for a in (world.profiles, world.sizes, world.label_counts)]
    selector = world.fit(make())
    world.play(selector, 4, 0)
    selector.leave([3, 14])
    world.play(selector, 4, 1)
    after = (world.profiles, world.sizes, world.label_counts)
    for old, new in zip(before, after, strict=True):
        assert np.array_equal(old, new), "an input array was changed"


def check_state(make: Make) -> None:
    """A restored selector continues as if nothing had happened; the state needs no pickle.

    Newcomers inherit nothing of those that trained last, and left: the state does not have it.
    """
    world = _World(23)
    original = world.fit(make())
    for round_ in range(3):
        cohort = world.play(original, 6, round_)
    original.leave(np.unique(cohort.ids))
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **original.state())
    buffer.seek(0)
    restored = make()
    with np.load(buffer, allow_pickle=False) as saved:
        restored.restore({name: saved[name] for name in saved.files})
    newcomers = np.arange(40, 45)
    world.ids = np.append(world.ids, newcomers)
    for name in ("sizes", "profiles", "updates", "label_counts", "losses", "durations"):
        column = getattr(world, name)
        setattr(world, name, np.concatenate([column, column[:5]]))
    for selector in (original, restored):
        world.join(selector, np.arange(23, 28), newcomers)
    for round_ in range(3, 7):
        _assert_same(
            world.play(original, 6, round_),
            world.play(restored, 6, round_),
            "the restored selector chose another cohort",
        )


def check_joins_and_leaves(make: Make) -> None:
    """Clients come and go between rounds; ids are arbitrary; newcomers can be chosen."""
    world = _World(20)
    world.ids = np.sort(np.random.default_rng(3).choice(2**60, 20, replace=False))
    selector = make()
    world.join(selector, np.arange(12), world.ids[:12])
    world.play(selector, 5, 0)
    selector.leave(world.ids[[0, 5, 11]])
    world.play(selector, 5, 1)
    world.join(selector, np.arange(12, 20), world.ids[12:])
    gone = set(world.ids[[0, 5, 11]].tolist())
    met: set[int] = set()
    for round_ in range(2, 80):
        met |= set(world.play(selector, 6, round_).ids.tolist())
    assert not met & gone, "a client that left was chosen"
    assert met & set(world.ids[12:].tolist()), "no client that joined later was ever chosen"
    world.join(selector, np.array([0]), world.ids[:1])
    assert world.ids[0] in selector.clients, "a client that left cannot come back"
    selector.leave(selector.clients)
    assert len(selector.clients) == 0, "not everyone could leave"


CHECKS: tuple[Callable[[Make], None], ...] = (
    check_declaration,
    check_cohorts,
    check_extreme_sizes,
    check_same_seed_same_cohort,
    check_chance_is_used,
    check_availability,
    check_refusals,
    check_profiles_are_checked,
    check_inputs_are_left_alone,
    check_state,
    check_joins_and_leaves,
)


def _assert_same(one: Cohort, two: Cohort, complaint: str) -> None:
    assert np.array_equal(one.ids, two.ids), complaint
    assert np.array_equal(one.weights, two.weights), complaint


def _assert_raises(expected: type[Exception], act: Callable[[], object]) -> str:
    try:
        act()
    except expected as error:
        return str(error)
    except Exception as error:
        raise AssertionError(
            f"raised {type(error).__name__} instead of {expected.__name__}"
        ) from error
    raise AssertionError(f"did not raise {expected.__name__}")
