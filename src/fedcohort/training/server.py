"""What the server makes of the clients' mean update.

``avg`` adds it, as FedAvg does. ``avgm`` (T.-M. H. Hsu et al., Measuring the Effects of
Non-Identical Data Distribution for Federated Visual Classification, 2019) and ``adam`` (S. J. Reddi
et al., Adaptive Federated Optimization, ICLR 2021, algorithm 2) treat it as a gradient: with Δ the
mean update,

    avgm:  m ← β m + Δ,             w ← w + η m
    adam:  m ← β₁ m + (1 - β₁) Δ,   v ← β₂ v + (1 - β₂) Δ²,   w ← w + η m / (√v + τ)
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from fedcohort.errors import InvalidParameterError, UnknownNameError
from fedcohort.parameters import Interval, check_parameters, parameter

if TYPE_CHECKING:
    # Run configurations read this module where PyTorch is not installed.
    from fedcohort.training.problem import Parameters

    State = dict[str, Parameters]


class Server(Protocol):
    """A rule that moves R global models, and the names of what it remembers of each."""

    memory: ClassVar[tuple[str, ...]]

    def step(self, before: Parameters, after: Parameters, state: State) -> Parameters:
        """Return where the models go.

        Parameters
        ----------
        before, after : dict of float32 [R, ...]
            The global models, and the weighted means of their clients' models.
        state : dict by memory of dict of float32 [R, ...]
            What is remembered; changed in place. All 0 at first.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Averaging:
    """FedAvg: the mean is the next model."""

    memory: ClassVar[tuple[str, ...]] = ()

    def step(self, before: Parameters, after: Parameters, state: State) -> Parameters:  # noqa: ARG002
        """Return `after`."""
        return after


@dataclasses.dataclass(frozen=True)
class Momentum:
    """FedAvgM.

    Attributes
    ----------
    lr, momentum : float
        η and β.
    """

    lr: float = parameter(1.0, Interval(0, closed="neither"))
    momentum: float = parameter(0.9, Interval(0, 1, closed="left"))

    memory: ClassVar[tuple[str, ...]] = ("momentum",)

    def __post_init__(self) -> None:
        check_parameters(self, "the server's avgm")

    def step(self, before: Parameters, after: Parameters, state: State) -> Parameters:
        """Return before + η m."""
        moved = {}
        for name, values in before.items():
            memory = state["momentum"][name].mul_(self.momentum).add_(after[name] - values)
            moved[name] = values + self.lr * memory
        return moved


@dataclasses.dataclass(frozen=True)
class Adam:
    """FedAdam.

    Attributes
    ----------
    lr, beta1, beta2, tau : float
        η, β₁, β₂ and τ.
    """

    lr: float = parameter(0.01, Interval(0, closed="neither"))
    beta1: float = parameter(0.9, Interval(0, 1, closed="left"))
    beta2: float = parameter(0.99, Interval(0, 1, closed="left"))
    tau: float = parameter(1e-3, Interval(0, closed="neither"))

    memory: ClassVar[tuple[str, ...]] = ("mean", "square")

    def __post_init__(self) -> None:
        check_parameters(self, "the server's adam")

    def step(self, before: Parameters, after: Parameters, state: State) -> Parameters:
        """Return before + η m / (√v + τ)."""
        moved = {}
        for name, values in before.items():
            update = after[name] - values
            mean = state["mean"][name].lerp_(update, 1 - self.beta1)
            square = state["square"][name].lerp_(update * update, 1 - self.beta2)
            moved[name] = values + self.lr * mean / (square.sqrt() + self.tau)
        return moved


SERVERS: dict[str, type[Server]] = {"avg": Averaging, "avgm": Momentum, "adam": Adam}


def make_server(name: str, **parameters: Any) -> Server:
    """Make the server called `name`."""
    if name not in SERVERS:
        raise UnknownNameError("server", name, list(SERVERS))
    known = {field.name for field in dataclasses.fields(SERVERS[name])}  # type: ignore[arg-type]
    for parameter_ in parameters:
        if parameter_ not in known:
            raise InvalidParameterError(
                f"The server {name!r} has no parameter {parameter_!r}: it has"
                f" {', '.join(sorted(known)) or 'none'}."
            )
    return SERVERS[name](**parameters)


def fresh_state(server: Server, stacked: Parameters) -> State:
    """Return what a server remembers before the first round."""
    return {kind: {n: v.new_zeros(v.shape) for n, v in stacked.items()} for kind in server.memory}


def part_of(state: State, part: slice) -> State:
    """Return what is remembered of some of the models, as views."""
    return {kind: {n: v[part] for n, v in values.items()} for kind, values in state.items()}
