"""Secure aggregation: Flower's SecAgg+ for cohorts, so that the server sees sums and no update.

Flower has SecAgg+ for its older interface only (``flwr.server.workflow`` and ``flwr.client.mod``,
here with flwr 1.40 to 1.42): a protocol of four messages that masks updates on the clients. This
file lets it run over the nodes of a cohort, with ClientApps and strategies of the Message API.

K. Bonawitz et al.: Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017.
J. Bell et al.: Secure Single-Server Aggregation with (Poly)Logarithmic Overhead, CCS 2020.
"""

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedcohort.adapters.introductions import SIZE
from fedcohort.errors import InvalidParameterError
from fedcohort.flower.log import log
from fedcohort.flower.state import arrays_of, record_of
from fedcohort.parameters import Interval, check_parameters, parameter
from fedcohort.selection import Need, Selector

if TYPE_CHECKING:
    from flwr.common import Parameters
    from flwr.server.compat.legacy_context import LegacyContext

_NAMES = "fedcohort.names"
_WEIGHT = "fedcohort.weight"
_SEPARATOR = "\n"
# What a selector may need of clients, since it comes before training; all else is hidden.
_VISIBLE = frozenset({Need.PROFILE, Need.LABEL_COUNTS})


@dataclasses.dataclass(frozen=True, eq=False)
class MaskedRound:
    """What came of a round under secure aggregation.

    Attributes
    ----------
    nodes : frozenset of int
        Whose updates are in the average.
    arrays : ArrayRecord, optional
        The average, weighed by size or as the selector says; None if too few nodes stayed to the
        end, or they weigh nothing.
    size : int
        What they weigh together: samples, where they weigh by size.
    """

    nodes: frozenset[int]
    arrays: ArrayRecord | None
    size: int

    def reply(self) -> Message:
        """Return the average as if one node had sent it, for the wrapped strategy."""
        assert self.arrays is not None
        content = RecordDict({"arrays": self.arrays})
        content["metrics"] = MetricRecord({"num-examples": max(self.size, 1)})
        return Message(content, min(self.nodes), "train")


@dataclasses.dataclass(frozen=True)
class SecureAggregation:
    """SecAgg+ for every round of a `CohortStrategy`.

    Parameters
    ----------
    shares : float
        Nodes that hold a share of each secret, as a share of the cohort.
    threshold : float
        Shares, as a share of them, that are needed to go on without a node that dropped out.
    largest_size : float
        The most samples a client may claim; masked sums overflow beyond.
    largest_value : float
        Parameters are clipped to ± this number before they are masked.
    timeout : float
        Seconds that each of the four messages waits for answers.

    Examples
    --------
    >>> from flwr.serverapp.strategy import FedAvg
    >>> from fedcohort.flower import CohortStrategy
    >>> strategy = CohortStrategy(FedAvg(), selector="match", secure=SecureAggregation())
    """

    shares: float = parameter(1.0, Interval(0, 1, closed="right"))
    threshold: float = parameter(0.6, Interval(0, 1, closed="right"))
    largest_size: float = parameter(100_000.0, Interval(1))
    largest_value: float = parameter(8.0, Interval(0, closed="neither"))
    timeout: float = parameter(300.0, Interval(0, closed="neither"))

    def __post_init__(self) -> None:
        check_parameters(self, "SecureAggregation")

    def check(self, selector: Selector, weight_key: str) -> None:
        """Raise `InvalidParameterError` for a selector or a weight that needs what is hidden."""
        if weight_key != SIZE:
            raise InvalidParameterError(
                f"The wrapped strategy weighs by {weight_key!r}, which secure aggregation hides: it"
                f" weighs by {SIZE!r}."
            )
        hidden = sorted(need.value for need in selector.needs - _VISIBLE)
        if hidden:
            raise InvalidParameterError(
                f"Selector {selector.name!r} needs the {hidden[0]} of single clients, which secure"
                " aggregation hides: take one that needs profiles or nothing, such as 'match' or"
                " 'fedavg'."
            )

    def train(
        self,
        grid: Grid,
        round_: int,
        messages: list[Message],
        weights: Mapping[int, float] | None = None,
    ) -> MaskedRound:
        """Let the nodes that a strategy addresses train, and return their average.

        Each weighs what it has trained on, or what `weights` say of its node.
        """
        from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
        from flwr.server.workflow import SecAggPlusWorkflow

        nodes = [message.metadata.dst_node_id for message in messages]
        arrays = next(iter(messages[0].content.array_records.values()))
        config = next(iter(messages[0].content.config_records.values()), ConfigRecord())
        first = ndarrays_to_parameters(list(arrays_of(arrays).values()))
        settings: dict[str, Any] = {**config, "server-round": round_}
        settings[_NAMES] = _SEPARATOR.join(arrays)
        own: dict[int, dict[str, Any]] = {node: {} for node in nodes}
        if weights is not None:
            # They are masked as whole numbers, so they take all the room that there is.
            unit = self.largest_size / max(weights.values())
            own = {node: {_WEIGHT: round(unit * weights[node])} for node in nodes}
        heard: list[tuple[Any, Any]] = []
        told = {node: settings | own[node] for node in nodes}
        SecAggPlusWorkflow(
            self.shares,
            self.threshold,
            max_weight=self.largest_size,
            clipping_range=self.largest_value,
            timeout=self.timeout,
        )(grid, _context(round_, first, told, heard))
        if not heard:
            return MaskedRound(frozenset(), None, 0)
        stayed = frozenset(proxy.node_id for proxy, _ in heard)
        mean = parameters_to_ndarrays(heard[0][1].parameters)
        if not all(np.isfinite(values).all() for values in mean):
            # All of their weights were rounded to 0.
            return MaskedRound(stayed, None, 0)
        named = {
            name: _as_before(values, array.numpy())
            for (name, array), values in zip(arrays.items(), mean, strict=True)
        }
        size = sum(result.num_examples for _, result in heard)
        return MaskedRound(stayed, record_of(named), size)


def _context(
    round_: int,
    first: "Parameters",
    settings: Mapping[int, dict[str, Any]],
    heard: list[tuple[Any, Any]],
) -> "LegacyContext":
    """Return a round as SecAgg+ takes it: each node's settings, and where its results are heard."""
    from flwr.common import FitIns
    from flwr.compat.common.recorddict_compat import parameters_to_arrayrecord
    from flwr.server.compat.legacy_context import LegacyContext
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key

    def aggregate(_: int, results: list[tuple[Any, Any]], __: Any) -> tuple[Any, Any]:
        heard.extend(results)
        return None, {}

    strategy = SimpleNamespace(
        configure_fit=lambda *_: [
            (SimpleNamespace(node_id=node), FitIns(first, told)) for node, told in settings.items()
        ],
        aggregate_fit=aggregate,
    )
    state = RecordDict(
        {
            MAIN_CONFIGS_RECORD: ConfigRecord({Key.CURRENT_ROUND: round_}),
            MAIN_PARAMS_RECORD: parameters_to_arrayrecord(first, keep_input=True),
        }
    )
    return LegacyContext(
        Context(run_id=0, node_id=0, node_config={}, state=state, run_config={}),
        strategy=strategy,  # type: ignore[arg-type]
        client_manager=SimpleNamespace(num_available=lambda: len(settings)),  # type: ignore[arg-type]
    )


def _maskable(values: NDArray[Any]) -> NDArray[Any]:
    """Return values as SecAgg+ masks them rightly: not scalars, and no half or whole numbers."""
    wide = values.dtype in (np.float32, np.float64)
    return np.atleast_1d(values if wide else values.astype(np.float32))


def _as_before(values: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
    """Return an average in the shape and type of what was sent."""
    shaped = values.reshape(before.shape)
    return (shaped if before.dtype.kind == "f" else np.rint(shaped)).astype(before.dtype)


def secure_mods() -> list[Mod]:
    """Return the mods of a client's training under `SecureAggregation`.

    ``@app.train(mods=secure_mods())``: the function underneath is one of the Message API, with
    ``arrays`` and ``config`` in its message, and one array and one metric record in its reply.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp(mods=secure_mods())
    """
    from flwr.client.mod import secaggplus_mod

    return [secaggplus_mod, _translate]


def _translate(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Turn the records of Flower's older interface into those of the Message API, and back."""
    from flwr.common import (
        Code,
        FitRes,
        Status,
        ndarrays_to_parameters,
        parameters_to_ndarrays,
    )
    from flwr.compat.common.recorddict_compat import fitres_to_recorddict, recorddict_to_fitins

    received = recorddict_to_fitins(message.content, keep_input=True)
    config = dict(received.config)
    names = str(config.pop(_NAMES)).split(_SEPARATOR)
    weight = config.pop(_WEIGHT, None)
    values = parameters_to_ndarrays(received.parameters)
    arrays = {name: Array(array) for name, array in zip(names, values, strict=True)}
    masked, message.content = (
        message.content,
        RecordDict(
            {"arrays": ArrayRecord(arrays), "config": ConfigRecord(config)}  # type: ignore[arg-type]
        ),
    )
    reply = call_next(message, context)
    message.content = masked
    trained = next(iter(reply.content.array_records.values()))
    metrics = next(iter(reply.content.metric_records.values()))
    size = metrics["num-examples"] if weight is None else weight
    if not isinstance(size, int | float):
        log.error("num-examples is %r, not a number.", size)
        size = 1
    # The server would see metrics as they are: none leave the client.
    result = FitRes(
        Status(Code.OK, ""),
        ndarrays_to_parameters([_maskable(trained[name].numpy()) for name in names]),
        int(size),
        {},
    )
    reply.content = fitres_to_recorddict(result, keep_input=True)
    return reply
