"""Which profiles look forged: too far out, copied, or at odds with what their clients train.

Nothing here can unmask a client that sends what an honest client with other data would send and
then trains as that client would. What it does find:

extreme         farther from the coordinate-wise median m of all profiles than `FAR` times the
                median distance, and than the median norm of a profile. Profiles of mixtures have
                norms of one size, so a client with rare data is not extreme.
copies          three clients or more of which each is nearer to the next than `NEAR` of what is
                usual between neighbours. Independent samples of one kind give profiles about
                √(v / n_m + v / n_n) apart, so distances are compared after division by
                √(1 / n_m + 1 / n_n). Among more than `LARGEST` clients, a random sample of that
                many is compared, and everyone else with the copies found in it.
contradictions  what training changed in the output layer is predicted from the profile by ridge
                regression over all other clients, and points the other way.

Medians bear up to half of the clients lying.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
import scipy  # its parts are loaded when they are used
from numpy.typing import ArrayLike, NDArray

from fedcohort.dpp.kernels import Frame, distances, row_blocks
from fedcohort.parameters import OneOf, parameter
from fedcohort.randomness import generator
from fedcohort.selection.base import Bools, Floats, Need
from fedcohort.selection.output_bias import OutputBiasSelector
from fedcohort.selection.roster import Rows

# On clean federations of three data sets and eight kinds of skew no profile was farther out than
# 3.3 median distances, and no two nearer than half of what is usual (docs/hardening.md).
FAR = 4.0
NEAR = 1 / 3
SMALLEST_GROUP = 3
# A claimed size counts up to this many times the median, so that it cannot excuse a copy.
_LARGEST_SIZE = 4.0
# The distances of all pairs are looked at, in larger populations of a sample: copies that are fewer
# than 3 in `LARGEST` may not show in it.
LARGEST = 10_000
# Clients whose training must be known, for each direction of the profiles, before any is judged.
_CLIENTS_PER_DIRECTION = 3

_DIRECTION, _HEARD = "direction", "heard"


@dataclasses.dataclass(kw_only=True, eq=False)
class ProfileSelector(OutputBiasSelector):
    """A selector that looks at profiles and can leave out those that look forged.

    Parameters
    ----------
    guard : {"off", "profiles", "updates"}
        Who is left out: nobody, as papers have it; extreme profiles and copies; or, with updates,
        also clients whose training contradicts their profile. Clients left out are candidates
        again only where the others are too few.
    outputs : int, optional
        Length of the output layer's bias, for ``updates``: that of the simulated model, or 10.
    """

    guard: str = parameter("off", OneOf("off", "profiles", "updates"))

    needs = frozenset({Need.PROFILE})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._trust: Bools | None = None
        self._forgeries: Bools | None = None
        if self.guard == "updates":
            # A declaration of the class, which a parameter widens for this selector alone.
            self.needs = ProfileSelector.needs | {Need.UPDATE}  # type: ignore[misc]

    @property
    def suspects(self) -> Mapping[int, str]:
        """Why clients are left out, by id."""
        if self.guard == "off" or not len(self._roster):
            return {}
        reasons = np.where(self._forged(), "its profile is extreme or a copy", "")
        reasons = np.where(
            (reasons == "") & self._at_odds(), "its training contradicts its profile", reasons
        )
        return {int(c): str(r) for c, r in zip(self.clients, reasons, strict=True) if r}

    # -- for subclasses --------------------------------------------------------------------

    def _population(self) -> Rows | None:
        """Return whom choices are measured against, even where others fill up; None is everyone."""
        if self.guard == "off":
            return None
        trusted = self._trusted()
        return None if trusted.all() or not trusted.any() else np.flatnonzero(trusted)

    def _candidates(self, k: int, available: ArrayLike | None) -> Rows:
        rows = super()._candidates(k, available)
        if self.guard == "off":
            return rows
        trusted = rows[self._trusted()[rows]]
        return trusted if len(trusted) >= k else rows

    def _trusted(self) -> Bools:
        if self._trust is None:
            self._trust = ~(self._forged() | self._at_odds())
        return self._trust

    def _forged(self) -> Bools:
        if self._forgeries is None:
            self._forgeries = forged(self._roster[Need.PROFILE.value], self._roster["size"])
        return self._forgeries

    def _at_odds(self) -> Bools:
        found = np.zeros(len(self._roster), bool)
        if self.guard == "updates" and _HEARD in self._roster:
            rows = np.flatnonzero(self._roster[_HEARD])
            profiles = self._roster[Need.PROFILE.value][rows]
            means = self._roster[_DIRECTION][rows] / self._roster[_HEARD][rows, None]
            found[rows] = agreement(profiles, means) < 0
        return found

    def _joined(self, rows: Rows) -> None:  # noqa: ARG002
        self._doubt()

    def _left(self) -> None:
        self._doubt()

    def _told(self, need: Need, rows: Rows) -> None:
        if need is Need.UPDATE:
            changes = self._roster[need.value][rows].astype(np.float64)
            lengths = np.linalg.norm(changes, axis=1, keepdims=True)
            self._roster.define(_DIRECTION, 0.0, changes.shape[1:])
            self._roster.define(_HEARD, 0.0)
            units = np.divide(changes, lengths, out=np.zeros_like(changes), where=lengths > 0)
            self._roster.put(_DIRECTION, rows, self._roster[_DIRECTION][rows] + units)
            self._roster.put(_HEARD, rows, self._roster[_HEARD][rows] + 1)
            before, self._trust = self._trust, None
            if before is None or np.array_equal(before, self._trusted()):
                return
        self._doubt()

    def _doubt(self) -> None:
        """Judge again when next asked, and drop what was derived from who was trusted."""
        if self.guard != "off":
            self._forget()

    def _forget(self) -> None:
        self._trust = self._forgeries = None


def forged(profiles: NDArray[np.floating], sizes: Floats) -> Bools:
    """Tell which profiles are extreme or copies.

    Parameters
    ----------
    profiles : float [C, Q]
        One row per client.
    sizes : float64 [C]
        Samples of each client.

    Returns
    -------
    bool [C]
    """
    if len(profiles) < SMALLEST_GROUP:
        return np.zeros(len(profiles), bool)
    centre = np.median(profiles, axis=0)
    # In units of a usual number, since squares of huge profiles would overflow.
    unit = float(np.median(np.abs(profiles))) or 1.0
    with np.errstate(over="ignore"):
        reach = np.linalg.norm(profiles / unit - centre / unit, axis=1)
        norms = np.linalg.norm(profiles / unit, axis=1)
    extreme: Bools = (reach > FAR * np.median(reach)) & (reach > np.median(norms))
    kept = np.flatnonzero(~extreme)
    result = extreme.copy()
    if len(kept) >= SMALLEST_GROUP:
        result[kept] = _copies(profiles[kept], sizes[kept])
    return result


def _copies(profiles: NDArray[np.floating], sizes: Floats) -> Bools:
    noise = 1.0 / np.minimum(sizes, _LARGEST_SIZE * np.median(sizes))
    clients = len(profiles)
    rng = generator(0, "guard", clients)
    some = np.sort(rng.choice(clients, min(clients, LARGEST), replace=False, shuffle=False))
    frame = Frame.around(profiles, profiles[some])
    framed = frame(profiles[some])
    alike, limit = _alike(framed, noise[some])
    result = np.zeros(clients, bool)
    result[some] = alike
    found = np.flatnonzero(alike)
    rest = np.setdiff1d(np.arange(clients), some, assume_unique=True)
    if len(found) and len(rest):
        for rows in row_blocks(len(rest), max(len(found), profiles.shape[1])):
            apart = distances(frame(profiles[rest[rows]]), framed[found])
            apart /= np.sqrt(noise[rest[rows], None] + noise[some[found]])
            result[rest[rows]] = (apart < limit).any(axis=1)
    return result


def _alike(framed: Floats, noise: Floats) -> tuple[Bools, float]:
    """Tell who is one of a group of copies, and how near that is."""
    nearest = np.empty(len(framed))
    for rows in row_blocks(len(framed), max(len(framed), framed.shape[1])):
        nearest[rows] = _apart(framed, noise, rows).min(axis=1)
    limit = NEAR * float(np.median(nearest))
    result = np.zeros(len(framed), bool)
    # Only these have anybody that near; among honest clients they are few.
    close = np.flatnonzero(nearest < limit)
    if len(close) < SMALLEST_GROUP:
        return result, limit
    near = np.concatenate(
        [
            _apart(framed[close], noise[close], rows) < limit
            for rows in row_blocks(len(close), max(len(close), framed.shape[1]))
        ]
    )
    first, second = np.nonzero(near)
    links = scipy.sparse.coo_array((np.ones(len(first)), (first, second)), shape=(len(close),) * 2)
    groups = scipy.sparse.csgraph.connected_components(links, directed=False)[1]
    result[close] = np.bincount(groups)[groups] >= SMALLEST_GROUP
    return result, limit


def _apart(framed: Floats, noise: Floats, rows: slice) -> Floats:
    """Return the distances of some clients to all, in units of their sampling noise."""
    apart: Floats = distances(framed[rows], framed)
    apart /= np.sqrt(noise[rows, None] + noise)
    own = np.arange(rows.start, rows.stop)
    apart[own - rows.start, own] = np.inf
    return apart


def agreement(profiles: NDArray[np.floating], changes: Floats) -> Floats:
    """Return how well each client's training agrees with its profile.

    Parameters
    ----------
    profiles : float [m, Q]
        Of the clients whose training is known.
    changes : float64 [m, N]
        What their training changes, each of length about 1.

    Returns
    -------
    float64 [m]
        The cosine between a client's change and the change that the other clients lead to expect
        of its profile, both relative to the mean; 1 while too few clients are known to say.
    """
    clients, kinds = changes.shape
    if clients <= _CLIENTS_PER_DIRECTION * kinds:
        return np.ones(clients)
    framed = Frame.around(profiles, profiles)(profiles)
    vectors, values, _ = np.linalg.svd(framed - framed.mean(axis=0), full_matrices=False)
    squares = values**2
    ridge = squares[min(kinds, len(squares) - 1)] or 1.0
    hat = (vectors * (squares / (squares + ridge))) @ vectors.T + 1 / clients
    influence = np.minimum(np.diag(hat), 1 - 1e-9)[:, None]
    # Leaving a client out of a ridge regression divides its residual by 1 − its influence.
    expected = changes - (changes - hat @ changes) / (1 - influence)
    mean = changes.mean(axis=0)
    expected, actual = expected - mean, changes - mean
    lengths = np.linalg.norm(expected, axis=1) * np.linalg.norm(actual, axis=1)
    products = np.einsum("ij,ij->i", expected, actual)
    cosines: Floats = np.divide(products, lengths, out=np.ones(clients), where=lengths > 0)
    return cosines
