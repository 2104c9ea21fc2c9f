"""Options whose text has a grammar of its own."""

import re

from fedcohort.errors import InvalidParameterError


def count_or_all(option: str, text: str, word: str) -> int | None:
    """Read a whole number, or None for the `word` that means everything."""
    if text == word:
        return None
    if not re.fullmatch(r"\d+", text):
        raise InvalidParameterError(f"{option} must be a whole number or {word}, not {text!r}.")
    return int(text)
