"""Options whose text has a grammar of its own."""

import re

from fedcohort.errors import InvalidParameterError


def seed_list(text: str) -> list[int]:
    """Read seeds such as ``0..9``, ``7`` or ``0,3,10..12``."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\.\.(\d+))?\s*", part)
        if match is None:
            raise InvalidParameterError(
                f"--seeds {text!r} cannot be read at {part!r}: write seeds such as 0..9 or 0,3,7."
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise InvalidParameterError(
                f"--seeds {text!r} runs backwards at {part.strip()!r}: write the smaller seed"
                " first."
            )
        seeds += range(first, last + 1)
    return list(dict.fromkeys(seeds))


def count_or_all(option: str, text: str, word: str) -> int | None:
    """Read a whole number, or None for the `word` that means everything."""
    if text == word:
        return None
    if not re.fullmatch(r"\d+", text):
        raise InvalidParameterError(f"{option} must be a whole number or {word}, not {text!r}.")
    return int(text)
