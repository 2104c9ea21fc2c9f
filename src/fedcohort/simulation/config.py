"""A run is a value: one frozen, validated configuration whose hash is its key in the store."""

import dataclasses
import hashlib
import json
import re
from functools import partial
from typing import Any, Self

from fedcohort.errors import InvalidParameterError
from fedcohort.federation import DATASETS, TASKS, has_own_clients, parse_skew
from fedcohort.parameters import Interval, OneOf, Optional, Text
from fedcohort.privacy import PROTECTED, Promise
from fedcohort.selection import Selector, list_selectors, make_selector
from fedcohort.settings import Setting, setting, settings_of
from fedcohort.simulation.system import parse_availability
from fedcohort.specs import parse_spec
from fedcohort.training import INITIALISATIONS
from fedcohort.training.schedule import parse_decay
from fedcohort.training.server import SERVERS, Server, make_server

PROFILES = ("fc1", "gradient", "representative-gradient")

_POSITIVE = Interval(1, integral=True)
_ABOVE_0 = Interval(0, closed="neither")
# Profiles of this kind are what clients learn in a first round: its settings shape them.
_TRAINED = "representative-gradient"
_FIRST_TRAINED = ("epochs", "batch_size", "lr", "momentum", "proximal")

# Kinds of settings, by how runs that differ in one may be grouped.
_data = partial(setting, group="data", lockstep=True, federation=True)
_division = partial(setting, group="data", lockstep=False, federation=True, divides=True)
_training = partial(setting, group="training", lockstep=True, federation=False)
_local_work = partial(setting, group="training", lockstep=True, federation=_TRAINED)
_choice = partial(setting, group="selection", lockstep=False, federation=False)
_profiles = partial(setting, group="selection", lockstep=False, federation=True, compared=True)
_system = partial(setting, group="system", lockstep=False, federation=False, quiet=True)
_output = partial(setting, group="output", lockstep=True, federation=False)


def _server(spec: str) -> Server:
    name, parameters = parse_spec(spec)
    return make_server(name, **parameters)


def check_augmentation(text: str) -> None:
    """Refuse a text that names no augmentation, without importing PyTorch."""
    if not re.fullmatch(r"none|flip|crop:[1-9]\d?|crop:[1-9]\d?,flip", text):
        raise InvalidParameterError(
            f"augment of the run must be none, flip, crop:PIXELS or crop:PIXELS,flip, not {text!r}."
        )


def _availability(text: str) -> None:
    # A trace is read when the run is prepared, and may be missing where results are looked at.
    if not text.endswith(".npy"):
        parse_availability(text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training: one federation, one selector, one seed.

    The declarations below say all about each setting; ``docs/settings.md`` is a table of them.
    For data that have clients of their own, `skew` becomes ``natural`` and `clients` None unless
    they are given, which `fedcohort.federation.build_federation` refuses.

    Examples
    --------
    >>> config = RunConfig(dataset="digits", skew="1", selector="match", rounds=50, seed=3)
    >>> config.cohort
    10
    """

    dataset: str = _data(
        "digits",
        Text(),
        help=f"{', '.join(DATASETS)}, or a file or folder of your own.",
        names=DATASETS,
    )
    skew: str = _division(
        "1",
        Text(),
        help="The paper's ξ in [0, 1] or H; iid, dirichlet:ALPHA, shards:N; natural for data with"
        " clients of their own.",
        grammar=parse_skew,
        names=("H", "iid", "dirichlet:", "shards:", "natural"),
        number_as_text=True,
        left_open=True,
    )
    clients: int | None = _division(
        100,
        Optional(_POSITIVE),
        help="Clients that the data are divided over.",
        words="{} clients",
        left_open=True,
    )
    cohort: int = _choice(
        10, _POSITIVE, help="Clients that train in a round.", words="cohorts of {}"
    )
    samples_per_client: int | None = _division(
        None,
        Optional(_POSITIVE),
        help="Size of every client, or largest: the largest possible.",
        words="{} samples a client",
        none=("largest", "largest clients"),
        quiet=True,
    )
    size_spread: float = _division(
        0.0,
        Interval(0, 3),
        help="Standard deviation of the logarithm of client sizes; 0 is equal sizes.",
        words="size spread {}",
        quiet=True,
    )
    reuse: bool = _division(
        False,
        OneOf(False, True),
        help="Let a sample go to several clients, or twice to one, when a class runs out.",
        words="samples reused",
        quiet=True,
    )
    selector: str = _choice(
        "dp3s",
        Text(),
        help="A selector, with parameters as name:key=value,key=value.",
        grammar=make_selector,
        names=list_selectors,
        compared=True,
    )
    rounds: int = _training(100, _POSITIVE, help="Rounds of training.", words="{} rounds")
    epochs: float = _local_work(
        1.0,
        _ABOVE_0,
        help="Passes over a client's data in a round.",
        lockstep=False,
        words="E = {:g}",
    )
    batch_size: int | None = _local_work(
        None,
        Optional(_POSITIVE),
        help="Samples per step, or full: all that a client has.",
        words="B = {}",
        none=("full", "full batch"),
    )
    lr: float = _local_work(0.1, _ABOVE_0, help="Learning rate of the clients.", words="lr {:g}")
    momentum: float = _local_work(
        0.0,
        Interval(0, 1, closed="left"),
        help="Momentum of the clients.",
        words="momentum {:g}",
        quiet=True,
    )
    proximal: float = _local_work(
        0.0,
        Interval(0),
        help="FedProx's μ; 0 is plain local training.",
        words="FedProx {:g}",
        quiet=True,
    )
    task: str = _data(
        "auto",
        OneOf("auto", *TASKS),
        help="What is learned: auto (as the targets tell), classification, binary, multilabel,"
        " regression or next-token.",
        words="{}",
        quiet=True,
    )
    score: str = _output(
        "auto",
        OneOf("auto", "accuracy", "F1", "AUROC", "R²"),
        help="What models are judged by: auto (the task's usual one), accuracy, F1, AUROC or R².",
        words="{}",
        quiet=True,
    )
    loss: str = _local_work(
        "auto",
        Text(),
        help="auto (the task's usual one), cross-entropy, logit, squared, absolute or huber;"
        " module:function or FILE.py:function of your own.",
        words="{} loss",
        names=("auto", "cross-entropy", "logit", "squared", "absolute", "huber"),
        quiet=True,
    )
    optimizer: str = _local_work(
        "sgd",
        OneOf("sgd", "adamw"),
        help="What clients descend with: sgd or adamw.",
        words="{}",
        quiet=True,
    )
    nesterov: bool = _local_work(
        False, OneOf(False, True), help="Use Nesterov's momentum.", words="Nesterov", quiet=True
    )
    weight_decay: float = _local_work(
        0.0, Interval(0), help="Weight decay of the clients.", words="weight decay {:g}", quiet=True
    )
    clip: float | None = _local_work(
        None,
        Optional(_ABOVE_0),
        help="Largest norm of a client's gradient in a step, or none.",
        words="gradients clipped to {:g}",
        none=("none", "no clipping"),
        quiet=True,
    )
    lr_decay: str = _training(
        "constant",
        Text(),
        help="The learning rate by round: constant, cosine, or step:ROUNDS:FACTOR.",
        words="lr {}",
        grammar=parse_decay,
        names=("constant", "cosine", "step:"),
        quiet=True,
    )
    augment: str = _local_work(
        "none",
        Text(),
        help="What is done to images before each step: none, flip, crop:PIXELS or"
        " crop:PIXELS,flip.",
        words="augmented by {}",
        grammar=check_augmentation,
        names=("none", "flip", "crop:4", "crop:4,flip"),
        quiet=True,
    )
    server: str = _training(
        "avg",
        Text(),
        help="What the server makes of the mean update: avg, avgm or adam, with parameters as"
        " avgm:momentum=0.9,lr=1.",
        words="{}",
        grammar=_server,
        names=SERVERS,
        quiet=True,
    )
    availability: str = _system(
        "always",
        Text(),
        help="Who is there in a round: always, a share (0.7), daily:SHARE, or a .npy trace of zeros"
        " and ones, rounds × clients.",
        words="availability {}",
        grammar=_availability,
        names=("always", "daily:"),
        number_as_text=True,
    )
    dropout: float = _system(
        0.0,
        Interval(0, 1, closed="left"),
        help="Probability that a client which was asked never answers.",
        words="dropout {:g}",
    )
    speed_spread: float = _system(
        0.0,
        Interval(0, 3),
        help="Standard deviation of the logarithm of clients' speeds; 0 is equal speeds.",
        words="speeds spread {:g}",
    )
    deadline: float | None = _system(
        None,
        Optional(_ABOVE_0),
        help="When a round ends at the latest, in passes of a client of median speed and average"
        " size, or none.",
        words="deadline {:g}",
        none=("none", "no deadline"),
    )
    over_selection: float = _system(
        1.0,
        Interval(1, 10),
        help="Ask this many times the cohort, and wait for the first.",
        words="{:g} × asked",
    )
    model: str = _training(
        "auto",
        Text(),
        help="auto (by the inputs), cnn, cnn-small, cnn-cifar, resnet8, resnet18, char-lstm, mlp,"
        " with parameters as mlp:hidden=128; module:factory or FILE.py:factory of your own.",
        federation=True,
        names=("auto", "cnn", "cnn-small", "cnn-cifar", "resnet8", "resnet18", "char-lstm", "mlp"),
    )
    normalisation: str = _training(
        "average",
        OneOf("average", "local"),
        help="What becomes of BatchNorm layers: average (as all others), or local: each client"
        " keeps its own (FedBN).",
        federation=True,
        words="{} normalisation",
        quiet=True,
    )
    init: str = setting(
        "default",
        OneOf(*INITIALISATIONS),
        help=f"First weights: {', '.join(INITIALISATIONS)}.",
        group="training",
        lockstep=False,
        federation=True,
        words="{}",
        compared=True,
    )
    profile: str = _profiles(
        "fc1",
        OneOf(*PROFILES),
        help=f"What clients send once: {', '.join(PROFILES)}.",
        words="{} profiles",
    )
    profile_layer: str | None = _profiles(
        None,
        Optional(Text()),
        help="Layer that fc1 reads, or auto: the first fully connected one.",
        words="profiles from {}",
        none=("auto", "profiles from the first layer"),
    )
    profile_epsilon: float | None = _profiles(
        None,
        Optional(_ABOVE_0),
        help="ε that profiles promise, or none: they are sent as they are.",
        words="ε = {:g}",
        none=("none", "no noise"),
    )
    profile_delta: float = _profiles(
        1e-5, Interval(0, 1, closed="neither"), help="δ of that promise.", words="δ = {:g}"
    )
    profile_protects: str = _profiles(
        "sample",
        OneOf(*PROTECTED),
        help="Whom that promise is made to: each sample of a client, or the client as a whole.",
        words="for each {}",
    )
    inputs: str = _data(
        "standard",
        OneOf("unit", "standard"),
        help="standard (mean 0, variance 1 over the training set) or unit (as they are, pixels in"
        " [0, 1]).",
        words="{} inputs",
    )
    precision: str = _training(
        "float32",
        OneOf("float32", "bfloat16"),
        help="What is multiplied in training and evaluation: float32, or bfloat16 (needs a GPU);"
        " weights are float32 always.",
        words="{}",
        on_command_line="auto",
    )
    eval_every: int = _output(
        1,
        _POSITIVE,
        help="Rounds between evaluations; the last round is always evaluated.",
        words="evaluated every {} rounds",
        quiet=True,
    )
    eval_samples: int | None = _output(
        None,
        Optional(_POSITIVE),
        help="Training samples, a fixed stratified part, that are evaluated until the last round,"
        " or all.",
        words="evaluated on {} samples",
        none=("all", "evaluated on all samples"),
        on_command_line=5000,
    )
    seed: int = setting(
        0,
        Interval(0, 2**63 - 1, integral=True),
        help="Decides the partition, the first weights, the data order and every draw.",
        group="training",
        lockstep=False,
        federation=True,
        words="seed {}",
    )
    content: str = setting(
        "",
        Text(),
        help="Digest of the data and the model, where their names do not fix them.",
        group=None,
        lockstep=True,
        federation=True,
        words="content {:.6}",
        quiet=True,
    )
    selection_content: str = setting(
        "",
        Text(),
        help="Digest of the availability trace and of a selector that is not fedcohort's own.",
        group=None,
        lockstep=False,
        federation=False,
        words="content {:.6}",
        compared=True,
    )
    selector_revision: int = setting(
        1,
        _POSITIVE,
        help="Revision of the selector: which version of its rule made the cohorts.",
        group=None,
        lockstep=False,
        federation=False,
        words="revision {}",
        compared=True,
    )
    averaging_revision: int = setting(
        1,
        _POSITIVE,
        help="Revision of averaging: up to 1 the weight of those who did not answer was lost.",
        group=None,
        lockstep=False,
        federation=False,
        words="revision {} of averaging",
        compared=True,
    )

    def __post_init__(self) -> None:
        for name, declared in SETTINGS.items():
            value = getattr(self, name)
            if not (declared.left_open and value is None):
                declared.check_value(value, "the run")
        self._fill_in()
        self._check_together()

    def _fill_in(self) -> None:
        """Settle what was left open."""
        if None not in (self.skew, self.clients):
            return
        own = has_own_clients(self.dataset)
        if self.skew is None:
            object.__setattr__(self, "skew", "natural" if own else SETTINGS["skew"].default)
        # Data with clients of their own refuse a skew; what nobody gave is not refused beside it.
        if self.clients is None and not own and parse_skew(self.skew).kind != "natural":
            object.__setattr__(self, "clients", SETTINGS["clients"].default)

    def _check_together(self) -> None:
        """Refuse what does not go together."""
        for name in ("profile_delta", "profile_protects"):
            if self.profile_epsilon is None and getattr(self, name) != SETTINGS[name].default:
                raise InvalidParameterError(
                    f"{name} of the run belongs to a profile_epsilon, and there is none: give both"
                    " or neither."
                )
        if self.nesterov and not self.momentum:
            raise InvalidParameterError(
                "nesterov of the run is a kind of momentum, and there is none: give a momentum too."
            )
        if self.optimizer == "adamw" and self.momentum:
            raise InvalidParameterError(
                "momentum of the run has no use in adamw, which has its own: leave it out."
            )
        if self.profile_layer is not None and self.profile != "fc1":
            raise InvalidParameterError(
                f"profile_layer of the run is what fc1 profiles are read from, and profiles are of"
                f" kind {self.profile!r}: take fc1, or no profile_layer."
            )
        if not self.own_clients and self.clients is not None and self.cohort > self.clients:
            raise InvalidParameterError(
                f"cohort of the run must be at most the {self.clients} clients, not"
                f" {self.cohort}: lower the cohort or raise the clients."
            )
        if self.promise is not None and self.profile != "fc1":
            raise InvalidParameterError(
                f"Profiles of kind {self.profile!r} cannot be made private: take fc1, or no"
                " profile_epsilon."
            )

    @property
    def own_clients(self) -> bool:
        """Whether the data say themselves who holds what."""
        return parse_skew(self.skew).kind == "natural" or hasattr(self, "_natural_before")

    def evaluates(self, round_: int) -> bool:
        """Tell whether the global model is measured after a round; 0 is the initial model."""
        return round_ % self.eval_every == 0 or round_ == self.rounds

    def make_selector(self) -> Selector:
        """Make the selector that `selector` names."""
        return make_selector(self.selector)

    def make_server(self) -> Server:
        """Make the server that `server` names."""
        return _server(self.server)

    def revisions(self) -> dict[str, Any]:
        """Return the revisions by which this version does the run, by setting."""
        all_answer = self.dropout == 0 and self.over_selection == 1 and self.deadline is None
        return {
            "selector_revision": self.make_selector().revision,
            "averaging_revision": 1 if all_answer else 2,
        }

    def of_today(self) -> Self:
        """Return the run with the revisions by which this version does it."""
        return dataclasses.replace(self, **self.revisions())

    @property
    def promise(self) -> Promise | None:
        """What profiles promise, if anything."""
        if self.profile_epsilon is None:
            return None
        return Promise(self.profile_epsilon, self.profile_delta, self.profile_protects)

    def lockstep_key(self) -> str:
        """Return what two runs must share to be trained as one program."""
        shared = {name: getattr(self, name) for name, s in SETTINGS.items() if s.lockstep}
        return json.dumps(shared, sort_keys=True)

    @property
    def federation_key(self) -> str:
        """What runs share that have the same clients, data, first model and profiles."""
        own = {k: v for k, v in self._chosen().items() if SETTINGS[k].federation is True}
        for name, declared in SETTINGS.items():
            value = getattr(self, name)
            # The first five have always been part of it, whatever their values.
            said = value != declared.default or name in _FIRST_TRAINED
            if declared.federation == self.profile and said:
                own[name] = value
        return _hash(json.dumps(own, sort_keys=True))

    def to_json(self) -> str:
        """Return the configuration as one canonical line."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the configuration that `to_json` wrote, in this version or an earlier one.

        What this version refuses because it would be ignored, an earlier one took: such runs stay
        readable, with their keys.
        """
        try:
            values = json.loads(text)
        except ValueError as error:
            raise InvalidParameterError(
                f"A configuration cannot be read ({error}): it must be what to_json wrote."
            ) from error
        if not isinstance(values, dict) or not values.keys() <= SETTINGS.keys():
            strange = sorted(values.keys() - SETTINGS) if isinstance(values, dict) else [values]
            raise InvalidParameterError(
                f"A configuration has the unknown field {strange[0]!r}: it must be what to_json of"
                " this version wrote."
            )
        config = object.__new__(cls)
        for field in dataclasses.fields(cls):
            object.__setattr__(config, field.name, values.get(field.name, field.default))
        config._fill_in()
        if "content" not in values and config.dataset.lower().endswith(".npz"):
            # Version 0.1 wrote skew 1 beside files, all of which had clients of their own.
            object.__setattr__(config, "_natural_before", True)
        return config

    @property
    def key(self) -> str:
        """The run's key in a store: 16 hexadecimal digits."""
        return _hash(json.dumps(self._chosen(), sort_keys=True))

    def _chosen(self) -> dict[str, Any]:
        """Return what is not as by default: keys outlast settings that are added later."""
        chosen = {}
        for name, declared in SETTINGS.items():
            value = getattr(self, name)
            if value != declared.default:
                # 5 and 5.0 are the same number of passes.
                real = declared.kind is float and type(value) is int
                chosen[name] = float(value) if real else value
        return chosen


SETTINGS: dict[str, Setting] = settings_of(RunConfig)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
