"""What models are judged by: a run's score, its columns, its last values, its target."""

import dataclasses
import unicodedata
from collections.abc import Mapping
from typing import Any, Literal

Kind = Literal["client", "class"]
Part = Literal["train", "test"]


@dataclasses.dataclass(frozen=True)
class Target:
    """A score that rounds are counted to.

    Attributes
    ----------
    score : float
        What a model must reach.
    on : {"train", "test"}
        The samples on which it must.
    """

    score: float
    on: Part = "train"


@dataclasses.dataclass(frozen=True)
class FinalScore:
    """How the final global model of a run does on some of the samples.

    Attributes
    ----------
    part : {"train", "test"}
        Which samples: of a client, those it trained on, or those of a client in the test data.
    kind : {"client", "class"}
        Whether they are those of a client or of a class.
    number : int
        Of the client or the class.
    samples : int
        How many there are.
    score, loss : float or None
        Of a client the run's score; of a class the share that is recognised. None where it is not
        defined.
    """

    part: Part
    kind: Kind
    number: int
    samples: int
    score: float | None
    loss: float | None


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
    return f"{part}_{score_name(score)}"


def score_name(score: str) -> str:
    """Return a score as part of a column's name: ``r2`` for ``R²``."""
    return unicodedata.normalize("NFKC", score).lower()
