"""Options whose text has a grammar of its own."""

from collections.abc import Sequence

from fedcohort.errors import InvalidParameterError


def one_of(option: str, text: str, words: Sequence[str]) -> None:
    """Refuse a text that is none of a few words."""
    if text not in words:
        raise InvalidParameterError(f"{option} must be {' or '.join(words)}, not {text!r}.")
