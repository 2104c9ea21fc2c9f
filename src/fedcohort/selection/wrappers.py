"""Rules of the house around any selector: `only` some clients, `always` others.

    always(only("match", ["tag:gpu"]), ["ward-7"])

As a spec, for the command line and study files: ``always(only(match; tag:gpu); ward-7)``.

Clients are meant by id, by name (with ``*`` and ``?`` as in file names) or by ``tag:WORD``. Names
and tags come from the adapters (see `Selector.label`); a client without any is named by its id.
"""

import dataclasses
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.errors import InvalidParameterError, NoClientsAvailableError
from fedcohort.selection.base import Bools, Cohort, Floats, Need, Outcome, Selector, _as_ids
from fedcohort.selection.registry import make_selector, register_wrapper, spec_of
from fedcohort.selection.roster import Ids, Rows
from fedcohort.specs import format_wrapped

Who = Sequence[int | str]

_SEPARATOR = "\n"


def only(selector: str | Selector, who: Who) -> "Only":
    """Return a selector that chooses among some clients alone, as if the others were away.

    Parameters
    ----------
    selector : str or Selector
        A spec, or a selector without clients.
    who : sequence of int or str
        Ids, names, patterns of names, or ``tag:WORD``.

    Examples
    --------
    >>> only("fedavg", range(5)).fit(clients=100).select(3, rng=np.random.default_rng(0)).ids
    array([3, 4, 2])
    """
    return Only(inner=_made(selector), who=tuple(who))


def always(selector: str | Selector, who: Who) -> "Always":
    """Return a selector that gives some clients a place whenever they are available.

    The others compete for the places that are left; where these clients are more than there are
    places, the selector chooses among them.

    Parameters
    ----------
    selector : str or Selector
        A spec, or a selector without clients.
    who : sequence of int or str
        Ids, names, patterns of names, or ``tag:WORD``.

    Examples
    --------
    >>> always("fedavg", [7]).fit(clients=100).select(3, rng=np.random.default_rng(0)).ids
    array([ 7, 84, 64])
    """
    return Always(inner=_made(selector), who=tuple(who))


@dataclasses.dataclass(kw_only=True, eq=False)
class Wrapper(Selector):
    """A selector around another, which keeps the clients and what is known of them."""

    inner: Selector
    who: tuple[int | str, ...]

    needs_labels = True

    def __post_init__(self) -> None:
        if not self.who:
            raise InvalidParameterError(f"{type(self).__name__} names no client: give it some.")
        self._labels: dict[int, frozenset[str]] = {}
        # Declarations of a class that are here those of the selector inside.
        self.name = f"{type(self).__name__.lower()}({self.inner.name})"  # type: ignore[misc]
        self.needs = self.inner.needs  # type: ignore[misc]
        self.repeats = self.inner.repeats  # type: ignore[misc]
        self.reported_loss = self.inner.reported_loss  # type: ignore[misc]
        self.revision = self.inner.revision  # type: ignore[misc]
        self.forgets_updates = self.inner.forgets_updates  # type: ignore[misc]

    def _meant(self, ids: Ids) -> Bools:
        """Tell which clients `who` means [m]."""
        numbers = {one for one in self.who if not isinstance(one, str)}
        words = [one for one in self.who if isinstance(one, str)]
        return np.array(
            [
                client in numbers
                or any(
                    fnmatch.fnmatchcase(label, word)
                    for label in self._labels.get(client, frozenset({str(client)}))
                    for word in words
                )
                for client in ids.tolist()
            ],
            bool,
        )

    def _among(self, available: ArrayLike | None) -> Ids:
        return self.clients if available is None else np.unique(_as_ids(available))

    # -- everything that the selector inside does ----------------------------------------------

    @property
    def clients(self) -> Ids:
        """The ids of all clients [C]."""
        return self.inner.clients

    @property
    def sizes(self) -> Floats:
        """How many samples each of `clients` holds [C]."""
        return self.inner.sizes

    @property
    def suspects(self) -> Mapping[int, str]:
        """Why clients are left out, by id."""
        return self.inner.suspects

    @property
    def innermost(self) -> Selector:
        """The selector that chooses."""
        return self.inner.innermost

    @property
    def asks(self) -> bool:
        """Whether it may have to ask clients something before it chooses."""
        return self.inner.asks

    def work_of(self, ids: ArrayLike) -> Floats | None:
        """Return the tasks of clients, as the selector inside gives them."""
        return self.inner.work_of(ids)

    def fit(self, *given: Any, **named: Any) -> "Wrapper":
        """Start afresh with clients 0..C-1, as the selector inside does."""
        self._labels = {}
        self.inner.fit(*given, **named)
        return self

    def join(self, *given: Any, **named: Any) -> None:
        """Let clients in, as the selector inside does."""
        self.inner.join(*given, **named)

    def leave(self, ids: ArrayLike) -> None:
        """Let clients go, with all that is known of them."""
        self.inner.leave(ids)
        for client in _as_ids(ids).tolist():
            self._labels.pop(client, None)

    def resize(self, ids: ArrayLike, sizes: ArrayLike) -> None:
        """Replace the sizes of clients."""
        self.inner.resize(ids, sizes)

    def label(self, client: int, labels: Iterable[str]) -> None:
        """Hear a client's name and tags."""
        self._labels[client] = frozenset(labels)
        self.inner.label(client, labels)

    def eligible(self, ids: ArrayLike) -> Ids:
        """Return those of the clients `ids` that may be chosen at all."""
        return self.inner.eligible(ids)

    def ask(
        self, k: int, available: ArrayLike | None = None, *, rng: np.random.Generator
    ) -> Mapping[Need, Ids]:
        """Name what must be told, and of whom, before the next `select`."""
        return self.inner.ask(k, available, rng=rng)

    def tell(self, need: Need, ids: ArrayLike, values: ArrayLike) -> None:
        """Answer `ask`, or replace what is known."""
        self.inner.tell(need, ids, values)

    def observe(self, outcome: Outcome) -> None:
        """Hear what came of the last cohort."""
        self.inner.observe(outcome)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state of the selector inside, and the labels."""
        words = [_SEPARATOR.join(sorted(labels)) for labels in self._labels.values()]
        return {
            **self.inner.state(),
            "labels.client": np.array(list(self._labels), np.int64),
            "labels.words": np.array(words, np.str_),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from a saved `state`."""
        columns = (state["labels.client"].tolist(), state["labels.words"].tolist())
        self._labels = {
            client: frozenset(words.split(_SEPARATOR))
            for client, words in zip(*columns, strict=True)
        }
        own = ("labels.client", "labels.words")
        # A wrapper inside has the same labels, and reads them under the same names.
        nested = isinstance(self.inner, Wrapper)
        self.inner.restore({n: a for n, a in state.items() if nested or n not in own})

    def describe(self) -> dict[str, Any]:
        """Say how the selector inside is working."""
        return self.inner.describe()

    def _choose(self, k: int, rows: Rows, rng: np.random.Generator) -> Cohort:
        raise NotImplementedError("a wrapper chooses by the selector inside")


@dataclasses.dataclass(kw_only=True, eq=False)
class Only(Wrapper):
    """Some clients alone; see `only`."""

    def eligible(self, ids: ArrayLike) -> Ids:
        """Return those of the clients `ids` that `who` means."""
        left = self.inner.eligible(ids)
        return left[self._meant(left)]

    def ask(
        self, k: int, available: ArrayLike | None = None, *, rng: np.random.Generator
    ) -> Mapping[Need, Ids]:
        """Name what must be told by those who may be chosen."""
        return self.inner.ask(k, self._permitted(available), rng=rng)

    def select(
        self, k: int, available: ArrayLike | None = None, *, rng: np.random.Generator
    ) -> Cohort:
        """Choose a cohort of `k` of those who may be chosen."""
        return self.inner.select(k, self._permitted(available), rng=rng)

    def _permitted(self, available: ArrayLike | None) -> Ids:
        there = self._among(available)
        left = self.eligible(there)
        if len(there) and not len(left):
            raise NoClientsAvailableError(
                f"{', '.join(map(str, self.who))} of the wrapper 'only' means none of the"
                f" {len(there)} clients that are available: name others, or wait for them."
            )
        return left


@dataclasses.dataclass(kw_only=True, eq=False)
class Always(Wrapper):
    """Some clients whenever they are there; see `always`."""

    def select(
        self, k: int, available: ArrayLike | None = None, *, rng: np.random.Generator
    ) -> Cohort:
        """Choose a cohort of `k` clients, the prior ones first."""
        there = self.eligible(self._among(available))
        prior = self._meant(there)
        if not prior.any():
            return self.inner.select(k, there, rng=rng)
        if prior.sum() >= k:
            return self.inner.select(k, there[prior], rng=rng)
        if k > len(there):
            # The selector inside says what is wrong with k.
            return self.inner.select(k, there, rng=rng)
        first = there[prior]
        others = self.inner.select(k - len(first), there[~prior], rng=rng)
        size = dict(zip(self.clients.tolist(), self.sizes.tolist(), strict=True))
        own = np.array([size[client] for client in first.tolist()])
        rest = sum(size[client] for client in others.ids.tolist())
        total = own.sum() + rest
        ids = np.concatenate([first, others.ids])
        weights = np.concatenate([own / total, others.weights * (rest / total)])
        return Cohort(ids, weights, self.work_of(ids), others.sized)


def _made(selector: str | Selector) -> Selector:
    return make_selector(selector) if isinstance(selector, str) else selector


register_wrapper("only", only)
register_wrapper("always", always)


@spec_of.register
def _(selector: Wrapper) -> str:
    name = type(selector).__name__.lower()
    return format_wrapped(name, spec_of(selector.inner), selector.who)
