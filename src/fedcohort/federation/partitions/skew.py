"""Label skew as in the paper: a main class with share ξ, or two classes half each (``H``).

References
----------
Wang et al., "Optimizing Federated Learning on Non-IID Data with Reinforcement Learning", INFOCOM
2020, which the FL-DP³S paper takes its partitions from.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedcohort.errors import InvalidParameterError, PartitionError
from fedcohort.federation.partitions.demand import (
    ClassPools,
    check_clients,
    checked_sizes,
    draw,
    wanted_sizes,
)
from fedcohort.federation.partitions.partition import IntArray, Partition

FloatArray = npt.NDArray[np.float64]
Skew = float | Literal["H"]
DemandRule = Callable[[IntArray], IntArray]
"""Says how many samples of each class clients of these sizes [C] get: [C, N]."""


def partition_by_skew(
    labels: npt.ArrayLike,
    clients: int,
    skew: Skew,
    *,
    rng: np.random.Generator,
    samples_per_client: int | None = None,
    sizes: npt.ArrayLike | None = None,
    proportions: npt.ArrayLike | None = None,
    reuse: bool = False,
) -> Partition:
    """Give every client a main class (ξ), or two classes (``H``).

    With ξ, a share ξ of a client's samples (rounded half up) comes from its main class and the
    rest is spread evenly over the other classes; each class is the main one of ⌊C/N⌋ or ⌈C/N⌉
    clients, and where C is not a multiple of N the larger classes take the extra clients. With
    ``H`` every client has half of its samples in each of two different classes, paired at random,
    and each class occurs equally often (± 1). Which client gets which classes is random.

    Without any size argument all clients get the same number of samples, the largest for which no
    sample is used twice (with ``H``, the largest even one). That number does not depend on `rng`.

    Parameters
    ----------
    labels : int array, shape [total samples]
        The class of every sample. Only classes that occur take part.
    clients : int
        The number of clients C.
    skew : float or "H"
        ξ in [0, 1], or ``"H"``.
    rng : numpy.random.Generator
        Where every random choice comes from.
    samples_per_client : int, optional
        The size of every client.
    sizes : int array, shape [C], optional
        The size of each client.
    proportions : float array, shape [C], optional
        Relative client sizes, scaled to the largest total that is feasible.
    reuse : bool, default False
        Whether a class that runs out may be drawn from again.

    Raises
    ------
    PartitionError
        When the data cannot satisfy the request; the message gives the largest feasible size.

    Examples
    --------
    >>> len(partition_by_skew(np.arange(100) % 10, 20, 1.0, rng=np.random.default_rng(0)))
    20
    """
    skew = check_skew(skew)
    pools = ClassPools.of(labels)
    clients = check_clients(clients)
    if sum(given is not None for given in (samples_per_client, sizes, proportions)) > 1:
        raise PartitionError("Give only one of samples_per_client, sizes and proportions.")
    relative = _relative_sizes(clients, sizes, proportions)
    # Only equal-sized clients change places at random: the demand table then depends on the sizes
    # alone, so every seed finds the same largest size and seeds can be trained in one batch.
    order = rng.permutation(clients)
    order = order[np.argsort(-relative[order], kind="stable")]
    wanted = wanted_sizes(clients, samples_per_client, sizes, _least(skew))
    demand = np.empty((clients, len(pools.supply)), dtype=np.int64)
    rule = _demand_rule(skew, relative[order], pools.supply, rng)
    if wanted is None:
        equal = proportions is None
        demand[order] = _largest_demand(rule, pools.supply, relative[order], skew, equal=equal)
    else:
        demand[order] = _wanted_demand(rule, pools, wanted[order], skew, reuse=reuse)
    return draw(demand, pools.members, rng)


def check_skew(skew: Skew) -> Skew:
    """Return ξ or ``"H"``, having checked it."""
    if isinstance(skew, str):
        if skew == "H":
            return "H"
    elif 0 <= skew <= 1:
        return float(skew)
    raise InvalidParameterError(f"skew must lie in [0, 1] or be H, not {skew!r}.")


def _relative_sizes(
    clients: int, sizes: npt.ArrayLike | None, proportions: npt.ArrayLike | None
) -> FloatArray:
    if sizes is not None:
        return checked_sizes(clients, sizes, minimum=1).astype(np.float64)
    if proportions is None:
        return np.ones(clients)
    array = np.asarray(proportions, dtype=np.float64)
    if array.shape != (clients,) or not np.all(np.isfinite(array)) or np.any(array <= 0):
        raise PartitionError(f"proportions must be {clients} numbers above 0, one a client.")
    return array


def _least(skew: Skew) -> int:
    """Return the size of the smallest client, which sizes that are ours to choose are multiples of.

    Two halves have at least one sample each, and the same number.
    """
    return 2 if skew == "H" else 1


def _demand_rule(
    skew: Skew, relative: FloatArray, supply: IntArray, rng: np.random.Generator
) -> DemandRule:
    """Give clients, largest first, their classes; return what says how much of each they get."""
    N = len(supply)
    if N < 2 and skew != 1:
        raise PartitionError(f"skew {skew} needs at least 2 classes, but the data have {N}.")
    if skew == "H":
        pairs = _class_pairs(len(relative), supply, rng)
        return lambda sizes: _pair_demand(sizes, pairs, supply)
    mains = _main_classes(relative, supply)
    return lambda sizes: _skew_demand(sizes, mains, skew, N)


def _largest_demand(
    rule: DemandRule, supply: IntArray, proportions: FloatArray, skew: Skew, *, equal: bool
) -> IntArray:
    """Return the demand [C, N] of the largest clients that there are enough samples for."""
    clients, least = len(proportions), _least(skew)
    sizes = (
        _largest_equal(rule, supply, clients, least)
        if equal
        else _largest_scaled(rule, supply, proportions, least)
    )
    if sizes is None:
        raise PartitionError(
            f"{supply.sum()} samples are too few to give {clients} clients skew {skew}: "
            "use fewer clients or allow reuse with a size of your own."
        )
    return rule(sizes)


def _wanted_demand(
    rule: DemandRule, pools: ClassPools, sizes: IntArray, skew: Skew, *, reuse: bool
) -> IntArray:
    """Return the demand [C, N] of clients of these sizes; refuse what there is too little of."""
    demand = rule(sizes)
    if not reuse and np.any(demand.sum(axis=0) > pools.supply):
        raise PartitionError(
            _infeasible(demand, pools, skew)
            + _feasible_hint(rule, pools.supply, sizes, _least(skew))
        )
    return demand


def _quotas(places: int, supply: IntArray) -> IntArray:
    """Divide `places` over the classes as evenly as can be, extra ones to the largest classes."""
    quotas = np.full(len(supply), places // len(supply))
    quotas[np.argsort(-supply, kind="stable")[: places % len(supply)]] += 1
    return quotas


def _main_classes(relative: FloatArray, supply: IntArray) -> IntArray:
    """Give each client, largest first, the allowed class that stays least used; shape [C]."""
    left = _quotas(len(relative), supply)
    load = np.zeros(len(supply))
    mains = np.empty(len(relative), dtype=np.int64)
    for client, size in enumerate(relative):
        use = np.where(left > 0, (load + size) / supply, np.inf)
        mains[client] = chosen = int(np.argmin(use))
        left[chosen] -= 1
        load[chosen] += size
    return mains


def _skew_demand(sizes: IntArray, mains: IntArray, skew: float, N: int) -> IntArray:
    """Return how many samples of each class each client gets, shape [C, N]."""
    if N == 1:
        return sizes[:, None]
    in_main = np.floor(skew * sizes + 0.5).astype(np.int64)
    rest = sizes - in_main
    demand = np.repeat(rest[:, None] // (N - 1), N, axis=1)
    demand[np.arange(len(sizes)), mains] = in_main
    return demand + _dealt_remainders(rest % (N - 1), mains, N)


def _dealt_remainders(remainders: IntArray, mains: IntArray, N: int) -> npt.NDArray[np.bool_]:
    """Deal what does not divide evenly, one sample a class, never to the main class.

    Over all clients every class gets equally many (± 1), so that classes of exactly C·n/N samples
    are used up to the last one. Shape [C, N].
    """
    dealt = np.zeros((len(mains), N), dtype=bool)
    totals = np.zeros(N, dtype=np.int64)
    for client in np.flatnonzero(remainders):
        rank = totals.copy()
        rank[mains[client]] = np.iinfo(np.int64).max
        least_dealt = np.argsort(rank, kind="stable")[: remainders[client]]
        dealt[client, least_dealt] = True
        totals[least_dealt] += 1
    # The last clients' main classes can leave it uneven by a few: hand those on.
    while (most := int(np.argmax(totals))) != (least := int(np.argmin(totals))):
        movable = dealt[:, most] & ~dealt[:, least] & (mains != least)
        if totals[most] - totals[least] <= 1 or not movable.any():
            break
        client = np.argmax(movable)
        dealt[client, [most, least]] = False, True
        totals[[most, least]] += -1, 1
    return dealt


def _class_pairs(clients: int, supply: IntArray, rng: np.random.Generator) -> IntArray:
    """Pair the classes at random, each equally often (± 1) and never with itself; shape [C, 2]."""
    places = np.repeat(np.arange(len(supply)), _quotas(2 * clients, supply))
    pairs = rng.permutation(places).reshape(clients, 2)
    for twin in np.flatnonzero(pairs[:, 0] == pairs[:, 1]):
        value = pairs[twin, 0]
        if pairs[twin, 1] != value:
            continue
        # No class fills more than half of the places, so a pair without this class exists.
        partner = int(rng.integers(clients))
        while value in pairs[partner]:
            partner = int(rng.integers(clients))
        pairs[twin, 1], pairs[partner, 1] = pairs[partner, 1], value
    return pairs


def _pair_demand(sizes: IntArray, pairs: IntArray, supply: IntArray) -> IntArray:
    """Return half of each client's size for both of its classes, shape [C, N]."""
    clients = np.arange(len(sizes))
    demand = np.zeros((len(sizes), len(supply)), dtype=np.int64)
    demand[clients, pairs[:, 0]] = sizes // 2
    demand[clients, pairs[:, 1]] = sizes // 2
    slack = supply - demand.sum(axis=0)
    for client in np.flatnonzero(sizes % 2):
        first, second = pairs[client]
        roomier = first if slack[first] >= slack[second] else second
        demand[client, roomier] += 1
        slack[roomier] -= 1
    return demand


def _largest_equal(
    demand_of: DemandRule, supply: IntArray, clients: int, step: int
) -> IntArray | None:
    """Return the largest equal sizes that fit (multiples of `step`), shape [C], or None."""
    size = int(supply.sum()) // clients // step * step
    while size > 0:
        sizes = np.full(clients, size)
        used = demand_of(sizes).sum(axis=0)
        if np.all(used <= supply):
            return sizes
        # Rounding moves a class by less than two samples a client, so sizes above this bound are
        # infeasible too: very uneven classes are skipped over instead of walked through.
        steep = used > 2 * clients
        bounds = size * (supply[steep] + 2 * clients) / (used[steep] - 2 * clients)
        size = min(size - step, int(np.min(bounds, initial=size)) // step * step)
    return None


def _largest_scaled(
    demand_of: DemandRule,
    supply: IntArray,
    proportions: FloatArray,
    minimum: int,
) -> IntArray | None:
    """Scale `proportions` to (nearly) the largest sizes that fit, shape [C], or None."""
    shares = proportions / proportions.sum()
    total = float(supply.sum())
    while total >= 1:
        sizes: IntArray = np.maximum(np.floor(total * shares).astype(np.int64), minimum)
        used = demand_of(sizes).sum(axis=0)
        if np.all(used <= supply):
            return sizes
        # The most overdrawn class tells how far to come down; a little more beats rounding.
        total *= min(0.999, float(np.min(supply / np.maximum(used, 1))))
    return None


def _infeasible(demand: IntArray, pools: ClassPools, skew: Skew) -> str:
    used = demand.sum(axis=0)
    worst = int(np.argmax(used - pools.supply))
    return (
        f"{len(demand)} clients at skew {skew} need {used[worst]} samples of class "
        f"{pools.values[worst]}, which has {pools.supply[worst]}: "
    )


def _feasible_hint(
    demand_of: DemandRule,
    supply: IntArray,
    ordered_sizes: IntArray,
    least: int,
) -> str:
    if np.all(ordered_sizes == ordered_sizes[0]):
        best = _largest_equal(demand_of, supply, len(ordered_sizes), least)
        if best is not None:
            return f"ask for at most {best[0]} samples a client, or allow reuse."
    else:
        best = _largest_scaled(demand_of, supply, ordered_sizes.astype(np.float64), least)
        if best is not None:
            return (
                f"with these proportions ask for at most {best.sum()} samples in all "
                f"(largest client {best.max()}), or allow reuse."
            )
    return "use fewer clients, or allow reuse."
