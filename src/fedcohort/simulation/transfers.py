"""From the device to the host, without waiting where that can be helped."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Landing:
    """What came of some runs' local training, on its way to the host.

    Attributes
    ----------
    used : bool [M]
        Whose local model was finite and counted.
    losses : float64 [M]
        Mean loss of each in training.
    received : dict of float64 [m]
        Losses of the model they received, by run, where the selector hears those instead.
    updates : dict of float32 [m, d]
        By run, where the selector needs them; on the device where they stay there.
    done : torch.Event, optional
        When all of it is there; None if it is.
    """

    used: Tensor
    losses: Tensor
    received: dict[int, Tensor]
    updates: dict[int, Tensor]
    done: torch.Event | None

    def wait(self) -> None:
        """Wait until everything is on the host."""
        if self.done is not None:
            self.done.synchronize()


def to_host(values: Tensor) -> Tensor:
    """Begin to copy a tensor to the host; on a GPU it has come when the next event has."""
    if values.device.type != "cuda":
        return values
    pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return pinned.copy_(values, non_blocking=True)


def event_on(device: torch.device) -> torch.Event | None:
    """Return the event after which all that was asked of a device is done; None of a CPU."""
    return torch.cuda.current_stream().record_event() if device.type == "cuda" else None


def fetch(evaluations: Iterable[Mapping[str, Tensor]]) -> list[dict[str, Any]]:
    """Wait for evaluations, and return each run's scores; a loss that is not finite is None."""
    scores: list[dict[str, Any]] = []
    for evaluation in evaluations:
        columns = {name: values.tolist() for name, values in evaluation.items()}
        for row in zip(*columns.values(), strict=True):
            pairs = zip(columns, row, strict=True)
            scores.append({name: v if math.isfinite(v) else None for name, v in pairs})
    return scores
