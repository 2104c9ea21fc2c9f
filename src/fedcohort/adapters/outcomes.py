"""Telling the selector what came of a round."""

import dataclasses
import logging
from collections.abc import Sequence

import numpy as np

from fedcohort.errors import InvalidInputError
from fedcohort.selection import Need, Outcome, Selector
from fedcohort.selection.output_bias import OutputBiasSelector

# Metrics that clients can send their loss as, by `Selector.reported_loss`.
_LOSS_KEYS = {"training": ("train_loss", "loss"), "received": ("received_loss",), None: ()}
_LOSSES = {"training": "training loss", "received": "loss of the model they received"}


def loss_keys_of(selector: Selector) -> tuple[str, ...]:
    """Return the metrics of train replies that may hold the loss a selector hears."""
    return _LOSS_KEYS[selector.reported_loss]


def fit_outputs(selector: Selector, shapes: Sequence[tuple[int, ...]]) -> None:
    """Tell a rule that reads the output layer's bias how long it is, or refuse the model.

    `shapes` are those of the model's arrays of floats, in order.
    """
    rule = selector.innermost
    if not isinstance(rule, OutputBiasSelector) or Need.UPDATE not in rule.needs or rule.outputs:
        return
    if not shapes or len(shapes[-1]) != 1:
        raise InvalidInputError(
            f"Selector {selector.name!r} reads the output layer's bias, with which a model must"
            f" end, and the last array of this one has shape {list(shapes[-1]) if shapes else []}:"
            " take another selector, or say outputs=N if the last N numbers are that bias."
        )
    (rule.outputs,) = shapes[-1]


def tell(
    selector: Selector, outcome: Outcome, round_: int, loss_keys: Sequence[str], log: logging.Logger
) -> None:
    """Let a selector observe a round; updates without a loss that it needs count as missing.

    `loss_keys` are the metrics that clients can send their loss as, for the log.
    """
    losses = outcome.losses
    reported = selector.reported_loss
    if Need.LOSS in selector.needs and reported is not None and losses is not None:
        told = np.isfinite(losses)
        if not told[outcome.trained].all():
            log.warning(
                "Round %d has updates without the %s, which selector %r needs: add %s to the"
                " metrics of train replies.",
                round_,
                _LOSSES[reported],
                selector.name,
                " or ".join(loss_keys),
            )
            outcome = dataclasses.replace(outcome, trained=outcome.trained & told)
    selector.observe(outcome)
