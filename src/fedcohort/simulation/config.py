"""A run is a value: one frozen, validated configuration whose hash is its key in the store."""

import dataclasses
import hashlib
import json
from typing import Any, Self

from fedcohort.errors import InvalidParameterError
from fedcohort.federation import parse_skew
from fedcohort.parameters import Interval, OneOf, Optional, Text, check_parameters, parameter
from fedcohort.privacy import Promise
from fedcohort.selection import Selector, make_selector
from fedcohort.simulation.system import parse_availability
from fedcohort.specs import parse_spec
from fedcohort.training import INITIALISATIONS
from fedcohort.training.server import Server, make_server

PROFILES = ("fc1", "gradient", "representative-gradient")

_POSITIVE = Interval(1, integral=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training: one federation, one selector, one seed.

    Attributes
    ----------
    dataset : str
        ``digits``, ``mnist``, ``fashion-mnist`` or a path to a ``.npz`` file.
    skew : str
        Who holds what: the paper's ξ in [0, 1] or ``H``, ``iid``, ``dirichlet:ALPHA`` or
        ``shards:N``; a ``.npz`` file keeps its own clients.
    clients, cohort : int
        How many there are (a ``.npz`` file brings its own), and how many train in a round.
    samples_per_client : int, optional
        Equal client size; the largest possible if not given.
    size_spread : float
        Standard deviation of the logarithm of client sizes; 0 is equal sizes.
    reuse : bool
        Whether a sample may go to several clients when a class runs out.
    selector : str
        A selector's name, with parameters as ``name:key=value,key=value``.
    rounds : int
        Rounds of training.
    epochs : float
        Passes over the local data in a round.
    batch_size : int, optional
        Samples a step; full batch if not given.
    lr, momentum : float
        Of local gradient descent.
    proximal : float
        FedProx's μ; 0 is plain local training.
    server : str
        What the server makes of the mean update: ``avg``, ``avgm`` or ``adam``, with parameters as
        ``name:key=value``.
    availability : str
        Who is there in a round: ``always``, a share such as ``0.7``, ``daily:SHARE``, or the path
        of a ``.npy`` trace of zeros and ones, rounds × clients.
    dropout : float
        The probability that a client which was asked never answers.
    speed_spread : float
        How unequal clients' speeds are: the standard deviation of their logarithm.
    deadline : float, optional
        When a round ends at the latest, in passes of a client of median speed and average size.
    over_selection : float
        How many more clients are asked than are waited for, as a factor.
    model, init, profile, profile_layer : str
        Architecture, first weights, what clients send once, and the layer it is read from.
    profile_epsilon, profile_delta : float
        What profiles promise each sample of a client (see `fedcohort.privacy`); without an ε they
        are sent as they are.
    inputs : {"unit", "standard"}
        Pixels in [0, 1], or shifted and scaled to mean 0 and variance 1 over the training set.
    precision : {"float32", "bfloat16"}
        What is multiplied in training and evaluation; weights are float32 always. bfloat16 needs a
        GPU.
    eval_every : int
        Rounds between evaluations; the last round is always evaluated.
    eval_samples : int, optional
        Size of the fixed stratified subset of the training set that training accuracy is measured
        on until the last round, which is measured exactly; the whole set if not given.
    seed : int
        Decides the partition, the first weights, the data order and every draw.
    """

    dataset: str = parameter("digits", Text())
    skew: str = parameter("1", Text())
    clients: int = parameter(100, _POSITIVE)
    cohort: int = parameter(10, _POSITIVE)
    samples_per_client: int | None = parameter(None, Optional(_POSITIVE))
    size_spread: float = parameter(0.0, Interval(0, 3))
    reuse: bool = parameter(False, OneOf(False, True))
    selector: str = parameter("dp3s", Text())
    rounds: int = parameter(100, _POSITIVE)
    epochs: float = parameter(1.0, Interval(0, closed="neither"))
    batch_size: int | None = parameter(None, Optional(_POSITIVE))
    lr: float = parameter(0.1, Interval(0, closed="neither"))
    momentum: float = parameter(0.0, Interval(0, 1, closed="left"))
    proximal: float = parameter(0.0, Interval(0))
    server: str = parameter("avg", Text())
    availability: str = parameter("always", Text())
    dropout: float = parameter(0.0, Interval(0, 1, closed="left"))
    speed_spread: float = parameter(0.0, Interval(0, 3))
    deadline: float | None = parameter(None, Optional(Interval(0, closed="neither")))
    over_selection: float = parameter(1.0, Interval(1, 10))
    model: str = parameter("auto", Text())
    init: str = parameter("default", OneOf(*INITIALISATIONS))
    profile: str = parameter("fc1", OneOf(*PROFILES))
    profile_layer: str | None = parameter(None, Optional(Text()))
    profile_epsilon: float | None = parameter(None, Optional(Interval(0, closed="neither")))
    profile_delta: float = parameter(1e-5, Interval(0, 1, closed="neither"))
    inputs: str = parameter("standard", OneOf("unit", "standard"))
    precision: str = parameter("float32", OneOf("float32", "bfloat16"))
    eval_every: int = parameter(1, _POSITIVE)
    eval_samples: int | None = parameter(None, Optional(_POSITIVE))
    seed: int = parameter(0, Interval(0, 2**63 - 1, integral=True))

    def __post_init__(self) -> None:
        check_parameters(self, "the run")
        own_clients = self.dataset.lower().endswith(".npz")
        if not own_clients and self.cohort > self.clients:
            raise InvalidParameterError(
                f"cohort of the run must be at most the {self.clients} clients, not"
                f" {self.cohort}: lower the cohort or raise the clients."
            )
        parse_skew(self.skew)
        self.make_selector()
        self.make_server()
        if not self.availability.endswith(".npy"):
            parse_availability(self.availability)
        if self.promise is not None and self.profile != "fc1":
            raise InvalidParameterError(
                f"Profiles of kind {self.profile!r} cannot be made private: take fc1, or no"
                " profile_epsilon."
            )

    def make_selector(self) -> Selector:
        """Make the selector that `selector` names."""
        return make_selector(self.selector)

    def make_server(self) -> Server:
        """Make the server that `server` names."""
        name, parameters = parse_spec(self.server)
        return make_server(name, **parameters)

    @property
    def promise(self) -> Promise | None:
        """What profiles promise each sample, if anything."""
        if self.profile_epsilon is None:
            return None
        return Promise(self.profile_epsilon, self.profile_delta)

    def lockstep_key(self) -> str:
        """Return what two runs must share to be trained as one program."""
        shared = {k: v for k, v in dataclasses.asdict(self).items() if k in _SHARED_IN_LOCKSTEP}
        return json.dumps(shared, sort_keys=True)

    @property
    def federation_key(self) -> str:
        """What runs share that have the same clients, data, first model and profiles."""
        own = {k: v for k, v in self._chosen().items() if k in _DECIDE_THE_FEDERATION}
        if self.profile == "representative-gradient":
            own |= {
                name: getattr(self, name)
                for name in ("epochs", "batch_size", "lr", "momentum", "proximal")
            }
        return _hash(json.dumps(own, sort_keys=True))

    def to_json(self) -> str:
        """Return the configuration as one canonical line."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the configuration that `to_json` wrote."""
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise InvalidParameterError(
                f"A configuration cannot be read ({error}): it must be what to_json wrote."
            ) from error
        known = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(fields, dict) or not fields.keys() <= known:
            strange = sorted(fields.keys() - known) if isinstance(fields, dict) else [fields]
            raise InvalidParameterError(
                f"A configuration has the unknown field {strange[0]!r}: it must be what to_json of"
                " this version wrote."
            )
        return cls(**fields)

    @property
    def key(self) -> str:
        """The run's key in a store: 16 hexadecimal digits."""
        return _hash(json.dumps(self._chosen(), sort_keys=True))

    def _chosen(self) -> dict[str, Any]:
        """Return what is not as by default: keys outlast fields that are added later."""
        chosen = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                # 5 and 5.0 are the same number of passes.
                real = "float" in str(field.type) and type(value) is int
                chosen[field.name] = float(value) if real else value
        return chosen


_SHARED_IN_LOCKSTEP = frozenset(
    {
        "dataset",
        "model",
        "inputs",
        "rounds",
        "batch_size",
        "lr",
        "momentum",
        "proximal",
        "server",
        "precision",
        "eval_every",
        "eval_samples",
    }
)


_DECIDE_THE_FEDERATION = frozenset(
    {
        "dataset",
        "skew",
        "clients",
        "samples_per_client",
        "size_spread",
        "reuse",
        "model",
        "init",
        "profile",
        "profile_layer",
        "profile_epsilon",
        "profile_delta",
        "inputs",
        "seed",
    }
)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
