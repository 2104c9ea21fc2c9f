"""What happened in a round, as a federation's owner reads it."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class RoundSummary:
    """What happened in one round, by client name.

    Attributes
    ----------
    round : int
        Its number, from 1.
    cohort : tuple of str
        Who was asked to train, one entry per place.
    trained : tuple of str
        Whose update was used.
    left_out : dict of str
        Why the others' was not.

    Examples
    --------
    >>> RoundSummary(1, ("a", "b"), ("a",), {"b": "sent nothing in time"}).trained
    ('a',)
    """

    round: int
    cohort: tuple[str, ...]
    trained: tuple[str, ...]
    left_out: Mapping[str, str]
