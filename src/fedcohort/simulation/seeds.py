"""Seeds as text: ``0..9``, ``7`` or ``0,3,10..12``."""

import re

from fedcohort.errors import InvalidParameterError

# One run each: more are a slip of the finger, and would take all memory before they are refused.
_MOST_SEEDS = 100_000


def parse_seeds(text: str, where: str) -> list[int]:
    """Read seeds such as ``0..9``, ``7`` or ``0,3,10..12``; `where` names the text in errors."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\.\.(\d+))?\s*", part)
        if match is None:
            raise InvalidParameterError(
                f"{where} {text!r} cannot be read at {part!r}: write seeds such as 0..9 or 0,3,7."
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise InvalidParameterError(
                f"{where} {text!r} runs backwards at {part.strip()!r}: write the smaller seed"
                " first."
            )
        if len(seeds) + last - first >= _MOST_SEEDS:
            raise InvalidParameterError(
                f"{where} {text!r} names more than {_MOST_SEEDS} seeds at {part.strip()!r}: name"
                " fewer."
            )
        seeds += range(first, last + 1)
    return list(dict.fromkeys(seeds))
