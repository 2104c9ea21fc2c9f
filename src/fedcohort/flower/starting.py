"""Running a wrapped strategy's own `start`, and skipping rounds that an earlier server has done."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flwr.serverapp.strategy import Strategy

from fedcohort.errors import InvalidInputError

# What the rounds of a strategy consist of; `start` calls nothing else that sees nodes or replies.
_STEPS = (
    "configure_train",
    "aggregate_train",
    "configure_evaluate",
    "aggregate_evaluate",
    "summary",
)


def own_start(inner: Strategy) -> bool:
    """Tell whether a strategy brings a `start` of its own."""
    return type(inner).start is not Strategy.start


def woven(inner: Strategy, outer: Strategy) -> Strategy:
    """Return `inner` with the steps of `outer`: the same object to its own `start`.

    Whatever `start` and its helpers set or read is the attribute of `inner` itself.
    """

    def step(name: str) -> Any:
        return lambda _, *given, **named: getattr(outer, name)(*given, **named)

    kind = type(type(inner).__name__, (type(inner),), {name: step(name) for name in _STEPS})
    twin: Strategy = object.__new__(kind)
    try:
        twin.__dict__ = vars(inner)
    except (AttributeError, TypeError) as error:
        raise InvalidInputError(
            f"{type(inner).__name__} has a start of its own that CohortStrategy cannot run, since"
            " the class has __slots__: leave them out."
        ) from error
    return twin


@contextmanager
def quiet_until(round_: int) -> Iterator[None]:
    """Keep Flower's log from telling of rounds before `round_`, which are only passed over."""
    logger = logging.getLogger("flwr")
    number = 0

    def tells(record: logging.LogRecord) -> bool:
        nonlocal number
        found = re.match(r"\[ROUND (\d+)", record.getMessage())
        number = int(found[1]) if found else number
        # Before the first round stands what the strategy is.
        return number == 0 or number >= round_

    logger.addFilter(tells)
    try:
        yield
    finally:
        logger.removeFilter(tells)
