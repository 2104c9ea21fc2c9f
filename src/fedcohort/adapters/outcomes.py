"""Telling the selector what came of a round."""

import dataclasses
import logging
from collections.abc import Sequence

import numpy as np

from fedcohort.selection import Need, Outcome, Selector

# Metrics that clients can send their loss as, by `Selector.reported_loss`.
_LOSS_KEYS = {"training": ("train_loss", "loss"), "received": ("received_loss",), None: ()}
_LOSSES = {"training": "training loss", "received": "loss of the model they received"}


def loss_keys_of(selector: Selector) -> tuple[str, ...]:
    """Return the metrics of train replies that may hold the loss a selector hears."""
    return _LOSS_KEYS[selector.reported_loss]


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
