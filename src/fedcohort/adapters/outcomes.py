"""Telling the selector what came of a round."""

import dataclasses
import logging
from collections.abc import Sequence

import numpy as np

from fedcohort.selection import Need, Outcome, Selector

LOSS_KEYS = ("train_loss", "loss")


def tell(
    selector: Selector, outcome: Outcome, round_: int, loss_keys: Sequence[str], log: logging.Logger
) -> None:
    """Let a selector observe a round; updates without a loss that it needs count as missing.

    `loss_keys` are the metrics that clients can send their loss as, for the log.
    """
    losses = outcome.losses
    if Need.LOSS in selector.needs and losses is not None:
        told = np.isfinite(losses)
        if not told[outcome.trained].all():
            log.warning(
                "Round %d has updates without a training loss, which selector %r needs: add one of"
                " %s to the metrics of train replies.",
                round_,
                selector.name,
                ", ".join(loss_keys),
            )
            outcome = dataclasses.replace(outcome, trained=outcome.trained & told)
    selector.observe(outcome)
