"""Telling the selector what came of a round."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence

import numpy as np

from fedcohort.errors import InvalidInputError
from fedcohort.selection import Need, Outcome, Selector
from fedcohort.selection.output_bias import OutputBiasSelector

# Metrics that clients can send their loss as, by `Selector.reported_loss`.
_LOSS_KEYS = {"training": ("train_loss", "loss"), "received": ("received_loss",), None: ()}
_LOSSES = {"training": "training loss", "received": "loss of the model they received"}

# What normalisation layers measure, as PyTorch calls it.
_STATISTICS = ("running_mean", "running_var")


def loss_keys_of(selector: Selector) -> tuple[str, ...]:
    """Return the metrics of train replies that may hold the loss a selector hears."""
    return _LOSS_KEYS[selector.reported_loss]


def is_learned(name: str) -> bool:
    """Tell of an array of floats whether it is learned: running statistics, by name, are not."""
    return name.rpartition(".")[2] not in _STATISTICS


def fit_updates(selector: Selector, floats: Mapping[str, tuple[int, ...]]) -> None:
    """Tell a rule that reads updates what they end with, or refuse a model that has none for it.

    `floats` are the shapes of the model's arrays of floats, by name and in order.
    """
    rule = selector.innermost
    if Need.UPDATE not in rule.needs:
        return
    shapes = [shape for name, shape in floats.items() if is_learned(name)]
    if not shapes:
        raise InvalidInputError(
            f"Selector {selector.name!r} needs what training changes, and this model has no array"
            " of floats to learn: take a selector that needs no updates."
        )
    if not isinstance(rule, OutputBiasSelector) or rule.outputs:
        return
    if len(shapes[-1]) != 1:
        raise InvalidInputError(
            f"Selector {selector.name!r} reads the output layer's bias, with which a model must"
            f" end, and the last array of this one has shape {list(shapes[-1])}: take another"
            " selector, or say outputs=N if the last N numbers are that bias."
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
