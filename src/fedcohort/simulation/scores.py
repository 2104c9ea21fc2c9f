"""What models are judged by: the score that a run's facts name, and its columns in tables."""

import unicodedata
from collections.abc import Mapping
from typing import Any


def score_of(facts: Mapping[str, Any]) -> str:
    """Return the score of the run that has these facts; before there were others, accuracy."""
    return str(facts.get("score", "accuracy"))


def score_column(part: str, score: str) -> str:
    """Return what the column of a score is called; `part` is ``train`` or ``test``, or ends so.

    Examples
    --------
    >>> score_column("train", "accuracy"), score_column("test", "R²")
    ('train_accuracy', 'test_r2')
    """
    return f"{part}_{unicodedata.normalize('NFKC', score).lower()}"
