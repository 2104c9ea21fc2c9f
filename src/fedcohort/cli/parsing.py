"""Options whose text has a grammar of its own."""

import re
from collections.abc import Sequence

from fedcohort.errors import InvalidParameterError


def count_or_all(option: str, text: str, word: str) -> int | None:
    """Read a whole number, or None for the `word` that means everything."""
    if text == word:
        return None
    if not re.fullmatch(r"\d+", text):
        raise InvalidParameterError(f"{option} must be a whole number or {word}, not {text!r}.")
    return int(text)


def one_of(option: str, text: str, words: Sequence[str]) -> None:
    """Refuse a text that is none of a few words."""
    if text not in words:
        raise InvalidParameterError(f"{option} must be {' or '.join(words)}, not {text!r}.")
