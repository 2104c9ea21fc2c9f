"""Who holds which samples: the paper's label skew, IID, Dirichlet and shards.

Every partition is made in two steps: a demand table (how many samples of each class each client
gets, shape [C, N]) and a draw that fills it from shuffled class pools. The first step says whether
a request is feasible; the second never takes a sample twice unless the caller asked for reuse.

References
----------
The skew ξ and ``H``: Wang et al., "Optimizing Federated Learning on Non-IID Data with
Reinforcement Learning", INFOCOM 2020. Shards: McMahan et al., "Communication-Efficient Learning of
Deep Networks from Decentralized Data", AISTATS 2017. Dirichlet over clients' classes: Hsu et al.,
"Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
2019; Dirichlet over a class's clients: Yurochkin et al., "Bayesian Nonparametric Federated
Learning of Neural Networks", ICML 2019.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedcohort.errors import InvalidParameterError, PartitionError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Skew = float | Literal["H"]
PartitionKind = Literal["skew", "iid", "dirichlet", "shards", "natural"]

_FORMS = "a number in [0, 1], H, iid, dirichlet:ALPHA, shards:COUNT or natural"


@dataclasses.dataclass(frozen=True)
class Partition:
    """Which samples each client holds, in compressed rows.

    Parameters
    ----------
    indices : int64 array, shape [total]
        Sample numbers, client after client.
    offsets : int64 array, shape [C + 1]
        Client c holds ``indices[offsets[c]:offsets[c + 1]]``.
    """

    indices: IntArray
    offsets: IntArray

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> IntArray:
        """Samples held by each client, shape [C]."""
        return np.diff(self.offsets)

    def of(self, client: int) -> IntArray:
        """Return the sample numbers of one client, shape [n_c]."""
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def label_counts(self, labels: npt.ArrayLike, classes: int) -> IntArray:
        """Count each client's samples by class.

        Parameters
        ----------
        labels : int array, shape [total samples]
            The class of every sample of the data set, 0 to classes - 1.
        classes : int
            The number of classes N.

        Returns
        -------
        int64 array, shape [C, N]
        """
        held = np.asarray(labels)[self.indices]
        owners = np.repeat(np.arange(len(self)), self.sizes)
        flat = np.bincount(owners * classes + held, minlength=len(self) * classes)
        return flat.reshape(len(self), classes).astype(np.int64)

    @classmethod
    def from_owners(cls, owners: npt.ArrayLike, clients: int) -> "Partition":
        """Group samples by the client that owns each.

        Parameters
        ----------
        owners : int array, shape [total]
            The client of every sample, 0 to clients - 1.
        clients : int
            The number of clients C.
        """
        owner = np.asarray(owners, dtype=np.int64)
        return cls(
            np.argsort(owner, kind="stable"), _offsets(np.bincount(owner, minlength=clients))
        )


@dataclasses.dataclass(frozen=True)
class PartitionSpec:
    """A partition in words: its kind and the number that goes with it.

    Parameters
    ----------
    kind : {"skew", "iid", "dirichlet", "shards", "natural"}
        ``natural`` means that the data set itself says who holds what.
    value : float or "H" or None
        ξ or ``"H"`` for ``skew``, α for ``dirichlet``, shards a client for ``shards``.
    """

    kind: PartitionKind
    value: Skew | None = None

    def __str__(self) -> str:
        if self.kind == "skew":
            return str(self.value) if self.value == "H" else f"{self.value:g}"
        return self.kind if self.value is None else f"{self.kind}:{self.value:g}"


def parse_skew(text: str) -> PartitionSpec:
    """Read a partition from text.

    Parameters
    ----------
    text : str
        ``"0.8"`` (ξ, any number in [0, 1]), ``"H"``, ``"iid"``, ``"dirichlet:0.1"``, ``"shards:2"``
        or ``"natural"``; upper and lower case are the same.

    Raises
    ------
    InvalidParameterError
        For any other text.
    """
    word, colon, argument = text.strip().lower().partition(":")
    if word == "h" and not colon:
        return PartitionSpec("skew", "H")
    if word in ("iid", "natural") and not colon:
        return PartitionSpec("iid" if word == "iid" else "natural")
    if word == "dirichlet":
        return PartitionSpec("dirichlet", _check_alpha(_number(argument, text)))
    if word == "shards":
        count = _number(argument, text)
        return PartitionSpec("shards", _check_shards(int(count) if count == int(count) else count))
    return PartitionSpec("skew", _check_skew(_number(word + colon + argument, text)))


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

    Returns
    -------
    Partition

    Raises
    ------
    PartitionError
        When the data cannot satisfy the request; the message gives the largest feasible size.
    """
    skew = _check_skew(skew)
    label_array, class_values, supply = _class_supply(labels)
    N = len(class_values)
    if N < 2 and skew != 1:
        raise PartitionError(f"skew {skew} needs at least 2 classes, but the data have {N}.")
    clients = _check_clients(clients)
    if sum(given is not None for given in (samples_per_client, sizes, proportions)) > 1:
        raise PartitionError("Give only one of samples_per_client, sizes and proportions.")

    relative = _relative_sizes(clients, sizes, proportions)
    # Only equal-sized clients change places at random: the demand table then depends on the sizes
    # alone, so every seed finds the same largest size and seeds can be trained in one batch.
    order = rng.permutation(clients)
    order = order[np.argsort(-relative[order], kind="stable")]
    if skew == "H":
        pairs = _class_pairs(clients, supply, rng)

        def demand_of(ordered_sizes: IntArray) -> IntArray:
            return _pair_demand(ordered_sizes, pairs, supply)

        step = 2
    else:
        mains = _main_classes(relative[order], supply)

        def demand_of(ordered_sizes: IntArray) -> IntArray:
            return _skew_demand(ordered_sizes, mains, skew, N)

        step = 1

    minimum = 2 if skew == "H" else 1
    wanted = _wanted_sizes(clients, samples_per_client, sizes, minimum)
    if wanted is None:
        scaled = (
            _largest_equal(demand_of, supply, clients, step)
            if proportions is None
            else _largest_scaled(demand_of, supply, relative[order], minimum)
        )
        if scaled is None:
            raise PartitionError(
                f"{len(label_array)} samples are too few to give {clients} clients skew {skew}: "
                "use fewer clients or allow reuse with a size of your own."
            )
        demand = demand_of(scaled)
    else:
        demand = demand_of(wanted[order])
        if not reuse and np.any(demand.sum(axis=0) > supply):
            raise PartitionError(
                _infeasible(demand, supply, class_values, clients, skew)
                + _feasible_hint(demand_of, supply, wanted[order], step, minimum)
            )
    unordered = np.empty_like(demand)
    unordered[order] = demand
    return _fill(unordered, _class_pools(label_array, class_values), rng)


def partition_iid(
    labels: npt.ArrayLike,
    clients: int,
    *,
    rng: np.random.Generator,
    samples_per_client: int | None = None,
    sizes: npt.ArrayLike | None = None,
    reuse: bool = False,
) -> Partition:
    """Deal the samples at random, whatever their class.

    Parameters are those of `partition_by_skew`. Without a size argument every client gets
    ⌊total / C⌋ samples.

    Raises
    ------
    PartitionError
        When more samples are asked for than there are.
    """
    total = len(_label_array(labels))
    clients = _check_clients(clients)
    wanted = _wanted_sizes(clients, samples_per_client, sizes, minimum=1)
    if wanted is None:
        wanted = np.full(clients, total // clients)
        if total < clients:
            raise PartitionError(
                f"{total} samples are too few for {clients} clients: use at most {total} clients."
            )
    _check_total(wanted, total, reuse)
    return _fill(wanted[:, None], [np.arange(total)], rng)


def partition_dirichlet(
    labels: npt.ArrayLike,
    clients: int,
    alpha: float,
    *,
    rng: np.random.Generator,
    samples_per_client: int | None = None,
    sizes: npt.ArrayLike | None = None,
    minimum: int = 1,
    reuse: bool = False,
) -> Partition:
    """Draw the clients' class shares from a Dirichlet distribution.

    Two variants are in use, and the size arguments choose between them:

    - no size argument: each class's samples are divided over the clients by one draw of Dir(α) of
      dimension C. All samples are used and the clients' sizes come out unequal. Clients left
      with fewer than `minimum` samples are topped up with random samples of the largest client.
    - `samples_per_client` or `sizes`: each client's class shares are one draw of Dir(α·p), where
      p is the class distribution of the data. A class that runs out is left out of the clients
      that follow (in random order), unless `reuse`.

    Parameters
    ----------
    labels : int array, shape [total samples]
        The class of every sample.
    clients : int
        The number of clients C.
    alpha : float
        The concentration α > 0; small is skewed, large is IID.
    rng : numpy.random.Generator
        Where every random choice comes from.
    samples_per_client, sizes, reuse
        As in `partition_by_skew`.
    minimum : int, default 1
        The least size of a client.

    Raises
    ------
    PartitionError
        When there are too few samples.
    """
    alpha = _check_alpha(alpha)
    label_array, class_values, supply = _class_supply(labels)
    clients = _check_clients(clients)
    wanted = _wanted_sizes(clients, samples_per_client, sizes, minimum)
    if wanted is None:
        if len(label_array) < clients * minimum:
            raise PartitionError(
                f"{len(label_array)} samples are too few to give {clients} clients at least "
                f"{minimum} each: use at most {len(label_array) // minimum} clients."
            )
        demand = _class_split(supply, clients, alpha, minimum, rng)
    else:
        _check_total(wanted, len(label_array), reuse)
        demand = _client_mixtures(wanted, supply, alpha, reuse, rng)
    return _fill(demand, _class_pools(label_array, class_values), rng)


def partition_shards(
    labels: npt.ArrayLike, clients: int, shards_per_client: int, *, rng: np.random.Generator
) -> Partition:
    """Sort the samples by class, cut them into equal shards and deal the shards at random.

    Parameters
    ----------
    labels : int array, shape [total samples]
        The class of every sample.
    clients : int
        The number of clients C.
    shards_per_client : int
        Shards a client. Where C·shards does not divide the total, random samples are left out, so
        that all shards have one size.
    rng : numpy.random.Generator
        Where every random choice comes from.

    Raises
    ------
    PartitionError
        When there are fewer samples than shards.
    """
    shards_per_client = _check_shards(shards_per_client)
    label_array = _label_array(labels)
    clients = _check_clients(clients)
    shards = clients * shards_per_client
    shard_size = len(label_array) // shards
    if shard_size == 0:
        raise PartitionError(
            f"{len(label_array)} samples cannot be cut into {shards} shards "
            f"({clients} clients × {shards_per_client}): use fewer clients or shards."
        )
    kept = rng.permutation(len(label_array))[: shards * shard_size]
    by_label = kept[np.argsort(label_array[kept], kind="stable")].reshape(shards, shard_size)
    dealt = by_label[rng.permutation(shards)].reshape(clients, -1)
    shuffled = rng.permuted(dealt, axis=1)
    return Partition(shuffled.ravel(), _offsets(np.full(clients, shuffled.shape[1])))


def lognormal_sizes(
    clients: int, total: int, sigma: float, rng: np.random.Generator, minimum: int = 1
) -> IntArray:
    """Divide `total` samples over clients whose sizes are log-normal.

    Parameters
    ----------
    clients : int
        The number of clients C.
    total : int
        What the sizes sum to.
    sigma : float
        Standard deviation of the logarithm of a size; 0 gives equal sizes (± 1).
    rng : numpy.random.Generator
        Where the sizes come from.
    minimum : int, default 1
        The least size; it is set aside for everyone first, and the rest is divided.

    Returns
    -------
    int64 array, shape [C]
    """
    clients = _check_clients(clients)
    if not (math.isfinite(sigma) and sigma >= 0):
        raise InvalidParameterError(f"The size spread must be a number of at least 0, not {sigma}.")
    if total < clients * minimum:
        raise PartitionError(
            f"{total} samples are too few to give {clients} clients at least {minimum} each."
        )
    weights = _exp_shares(sigma * rng.standard_normal(clients))
    return minimum + _apportion(total - clients * minimum, weights)


def _check_skew(skew: Skew) -> Skew:
    if isinstance(skew, str):
        if skew == "H":
            return "H"
    elif 0 <= skew <= 1:
        return float(skew)
    raise InvalidParameterError(f"skew must lie in [0, 1] or be H, not {skew}.")


def _check_alpha(alpha: float) -> float:
    # Below 1e-300 the logarithms of the gamma draws leave the range of a float.
    if not (math.isfinite(alpha) and alpha >= 1e-300):
        raise InvalidParameterError(
            f"The α of a Dirichlet must be above 0 and finite, not {alpha}."
        )
    return float(alpha)


def _check_shards(count: float) -> int:
    if count != int(count) or count < 1:
        raise InvalidParameterError(
            f"Shards a client must be a whole number of at least 1, not {count}."
        )
    return int(count)


def _check_clients(clients: int) -> int:
    if clients < 1:
        raise PartitionError(f"A federation needs at least 1 client, not {clients}.")
    return int(clients)


def _check_total(wanted: IntArray, total: int, reuse: bool) -> None:
    if not reuse and wanted.sum() > total:
        raise PartitionError(
            f"{len(wanted)} clients ask for {wanted.sum()} samples but there are {total}: "
            f"ask for at most {total // len(wanted)} a client, or allow reuse."
        )


def _number(argument: str, text: str) -> float:
    try:
        value = float(argument)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidParameterError(f"skew must be {_FORMS}, not {text!r}.")
    return value


def _label_array(labels: npt.ArrayLike) -> IntArray:
    array = np.asarray(labels)
    if array.ndim != 1 or len(array) == 0 or array.dtype.kind not in "iu":
        raise PartitionError(
            f"Labels must be a non-empty row of integers, not shape {array.shape} of {array.dtype}."
        )
    return array.astype(np.int64)


def _class_supply(labels: npt.ArrayLike) -> tuple[IntArray, IntArray, IntArray]:
    array = _label_array(labels)
    values, supply = np.unique(array, return_counts=True)
    return array, values, supply.astype(np.int64)


def _class_pools(labels: IntArray, class_values: IntArray) -> list[IntArray]:
    by_class = np.argsort(labels, kind="stable")
    cuts = np.searchsorted(labels[by_class], class_values[1:])
    return np.split(by_class, cuts)


def _offsets(sizes: IntArray) -> IntArray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _relative_sizes(
    clients: int, sizes: npt.ArrayLike | None, proportions: npt.ArrayLike | None
) -> FloatArray:
    if sizes is not None:
        return _checked_sizes(clients, sizes, minimum=1).astype(np.float64)
    if proportions is None:
        return np.ones(clients)
    array = np.asarray(proportions, dtype=np.float64)
    if array.shape != (clients,) or not np.all(np.isfinite(array)) or np.any(array <= 0):
        raise PartitionError(f"proportions must be {clients} numbers above 0, one a client.")
    return array


def _checked_sizes(clients: int, sizes: npt.ArrayLike, minimum: int) -> IntArray:
    array = np.asarray(sizes)
    if array.shape != (clients,) or array.dtype.kind not in "iu":
        raise PartitionError(f"sizes must be {clients} whole numbers, one a client.")
    if array.min() < minimum:
        raise PartitionError(f"Every client needs at least {minimum} samples, not {array.min()}.")
    return array.astype(np.int64)


def _wanted_sizes(
    clients: int, samples_per_client: int | None, sizes: npt.ArrayLike | None, minimum: int
) -> IntArray | None:
    if samples_per_client is not None and sizes is not None:
        raise PartitionError("Give only one of samples_per_client and sizes.")
    if samples_per_client is not None:
        return _checked_sizes(clients, np.full(clients, samples_per_client), minimum)
    return None if sizes is None else _checked_sizes(clients, sizes, minimum)


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
    clients = np.arange(len(sizes))
    in_main = np.floor(skew * sizes + 0.5).astype(np.int64)
    rest = sizes - in_main
    if N == 1:
        return sizes[:, None]
    demand = np.repeat(rest[:, None] // (N - 1), N, axis=1)
    demand[clients, mains] = in_main
    # What does not divide evenly is dealt one by one to the classes that were dealt least, so
    # that over all clients it falls on every class alike.
    dealt = np.zeros(N)
    for client in np.flatnonzero(rest % (N - 1)):
        dealt_to_others = dealt.copy()
        dealt_to_others[mains[client]] = np.inf
        extra = np.argsort(dealt_to_others, kind="stable")[: rest[client] % (N - 1)]
        demand[client, extra] += 1
        dealt[extra] += 1
    return demand


def _class_pairs(clients: int, supply: IntArray, rng: np.random.Generator) -> IntArray:
    """Pair the classes at random, each equally often (± 1) and never with itself; shape [C, 2]."""
    places = np.repeat(np.arange(len(supply)), _quotas(2 * clients, supply))
    pairs = rng.permutation(places).reshape(clients, 2)
    for twin in np.flatnonzero(pairs[:, 0] == pairs[:, 1]):
        value = pairs[twin, 0]
        if pairs[twin, 1] != value:
            continue
        # No class fills more than half of the places, so a pair without this class exists.
        partner = rng.choice(np.flatnonzero(np.all(pairs != value, axis=1)))
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
    demand_of: Callable[[IntArray], IntArray], supply: IntArray, clients: int, step: int
) -> IntArray | None:
    """Return the largest equal sizes that fit (multiples of `step`), shape [C], or None."""
    size = int(supply.sum()) // clients // step * step
    while size > 0:
        sizes = np.full(clients, size)
        used = demand_of(sizes).sum(axis=0)
        if np.all(used <= supply):
            return sizes
        # Rounding moves a class by less than one sample a client, so sizes above this bound are
        # infeasible too: very uneven classes are skipped over instead of walked through.
        steep = used > clients
        bounds = size * (supply[steep] + clients) / (used[steep] - clients)
        size = min(size - step, int(np.min(bounds, initial=size)) // step * step)
    return None


def _largest_scaled(
    demand_of: Callable[[IntArray], IntArray],
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


def _infeasible(
    demand: IntArray, supply: IntArray, class_values: IntArray, clients: int, skew: Skew
) -> str:
    used = demand.sum(axis=0)
    worst = int(np.argmax(used - supply))
    return (
        f"{clients} clients at skew {skew} need {used[worst]} samples of class "
        f"{class_values[worst]}, which has {supply[worst]}: "
    )


def _feasible_hint(
    demand_of: Callable[[IntArray], IntArray],
    supply: IntArray,
    ordered_sizes: IntArray,
    step: int,
    minimum: int,
) -> str:
    if np.all(ordered_sizes == ordered_sizes[0]):
        best = _largest_equal(demand_of, supply, len(ordered_sizes), step)
        if best is not None:
            return f"ask for at most {best[0]} samples a client, or allow reuse."
    else:
        best = _largest_scaled(demand_of, supply, ordered_sizes.astype(np.float64), minimum)
        if best is not None:
            return (
                f"with these proportions ask for at most {best.sum()} samples in all "
                f"(largest client {best.max()}), or allow reuse."
            )
    return "use fewer clients, or allow reuse."


def _class_split(
    supply: IntArray, clients: int, alpha: float, minimum: int, rng: np.random.Generator
) -> IntArray:
    """Divide every class over the clients by a draw of Dir(α), shape [C, N]."""
    demand = np.empty((clients, len(supply)), dtype=np.int64)
    for column, available in enumerate(supply):
        demand[:, column] = _apportion(int(available), _dirichlet(np.full(clients, alpha), rng))
    sizes = demand.sum(axis=1)
    for poor in np.flatnonzero(sizes < minimum):
        while sizes[poor] < minimum:
            rich = int(np.argmax(sizes))
            given = int(rng.choice(len(supply), p=demand[rich] / sizes[rich]))
            demand[rich, given] -= 1
            demand[poor, given] += 1
            sizes[rich] -= 1
            sizes[poor] += 1
    return demand


def _client_mixtures(
    sizes: IntArray, supply: IntArray, alpha: float, reuse: bool, rng: np.random.Generator
) -> IntArray:
    """Draw every client's class counts from its own Dirichlet shares, shape [C, N]."""
    prior = supply / supply.sum()
    left = supply.copy()
    demand = np.zeros((len(sizes), len(supply)), dtype=np.int64)
    for client in rng.permutation(len(sizes)):
        shares = _dirichlet(alpha * prior, rng)
        if reuse:
            demand[client] = rng.multinomial(sizes[client], shares)
            continue
        missing = int(sizes[client])
        while missing:
            open_shares = np.where(left > 0, shares, 0.0)
            if open_shares.sum() == 0:
                open_shares = left.astype(np.float64)
            drawn = rng.multinomial(missing, open_shares / open_shares.sum())
            taken = np.minimum(drawn, left)
            demand[client] += taken
            left -= taken
            missing -= int(taken.sum())
    return demand


def _dirichlet(concentration: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Draw from a Dirichlet in the log domain, where tiny concentrations do not underflow."""
    # Gamma(a) has the law of Gamma(a + 1) · U^(1/a), and −log U is exponential.
    logs = np.log(rng.standard_gamma(concentration + 1.0))
    logs -= rng.standard_exponential(len(concentration)) / concentration
    return _exp_shares(logs)


def _exp_shares(logs: FloatArray) -> FloatArray:
    weights = np.exp(logs - logs.max())
    shares: FloatArray = weights / weights.sum()
    return shares


def _apportion(total: int, shares: FloatArray) -> IntArray:
    """Divide `total` by `shares` into whole numbers: floors, then the largest remainders."""
    exact = total * shares
    counts = np.floor(exact).astype(np.int64)
    remainder = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:remainder]] += 1
    return counts


def _fill(demand: IntArray, pools: list[IntArray], rng: np.random.Generator) -> Partition:
    """Draw the samples that `demand` [C, N] asks for from the pools of the N classes."""
    clients = np.arange(len(demand))
    drawn = []
    owners = []
    for column, pool in enumerate(pools):
        needed = int(demand[:, column].sum())
        passes = max(1, math.ceil(needed / len(pool)))
        drawn.append(np.concatenate([rng.permutation(pool) for _ in range(passes)])[:needed])
        owners.append(np.repeat(clients, demand[:, column]))
    samples = np.concatenate(drawn)
    # Shuffled inside each client too, so that a prefix of a client's samples is a fair sample.
    by_client = np.lexsort((rng.random(len(samples)), np.concatenate(owners)))
    return Partition(samples[by_client].astype(np.int64), _offsets(demand.sum(axis=1)))
