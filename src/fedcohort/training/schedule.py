"""The learning rate by round."""

import math

from fedcohort.errors import InvalidParameterError


def rate_in_round(lr: float, decay: str, round_: int, rounds: int) -> float:
    """Return the learning rate of one of so many rounds, from 1 on; `lr` is that of the first.

    `decay` is ``constant``; ``step:EVERY:FACTOR``, times FACTOR after every EVERY rounds; or
    ``cosine``, down to 0 after the last round.
    """
    kind, every, factor = parse_decay(decay)
    if kind == "step":
        return lr * factor ** ((round_ - 1) // every)
    if kind == "cosine":
        return lr * 0.5 * (1 + math.cos(math.pi * (round_ - 1) / rounds))
    return lr


def parse_decay(text: str) -> tuple[str, int, float]:
    """Read a decay: its kind and, of steps, how often and by how much."""
    kind, *numbers = text.split(":")
    if kind in ("constant", "cosine") and not numbers:
        return kind, 1, 1.0
    try:
        every, factor = int(numbers[0]), float(numbers[1])
        right = kind == "step" and len(numbers) == 2 and every > 0 and 0 < factor <= 1
    except (IndexError, ValueError):
        right = False
    if not right:
        raise InvalidParameterError(
            "lr_decay of the run must be constant, cosine or step:ROUNDS:FACTOR with a factor"
            f" above 0 and at most 1, not {text!r}."
        )
    return kind, every, factor
