"""What is learned: the loss of a sample, and the score that models are judged by.

=================  =========================================  ==============================
task               loss by default                            score
=================  =========================================  ==============================
classification     cross-entropy                              accuracy
binary             cross-entropy of one logit                 accuracy
multilabel         mean cross-entropy of one logit per label  F1, over all labels together
regression         mean squared error                         R², mean over the targets
next-token         mean cross-entropy over the places         accuracy over the places
=================  =========================================  ==============================
"""

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from fedcohort.errors import UnknownNameError

Losses = Callable[[Tensor, Tensor], Tensor]
"""From outputs [B, ...] and targets [B, ...] to one loss per sample, [B]."""


def _per_sample(values: Tensor) -> Tensor:
    return values.flatten(1).mean(1) if values.dim() > 1 else values


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    if targets.dim() == 1:
        return F.cross_entropy(outputs, targets, reduction="none")
    places = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
    return places.view(targets.shape).mean(1)


def _logit(outputs: Tensor, targets: Tensor) -> Tensor:
    given = targets.to(outputs.dtype)
    logits = outputs.squeeze(1) if outputs.dim() > given.dim() else outputs
    return _per_sample(F.binary_cross_entropy_with_logits(logits, given, reduction="none"))


def _difference(of: Callable[..., Tensor]) -> Losses:
    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        return _per_sample(of(outputs.view(targets.shape), targets, reduction="none"))

    return losses


LOSSES: dict[str, Losses] = {
    "cross-entropy": _cross_entropy,
    "logit": _logit,
    "squared": _difference(F.mse_loss),
    "absolute": _difference(F.l1_loss),
    "huber": _difference(F.huber_loss),
}


@dataclasses.dataclass(frozen=True)
class Task:
    """What a model learns.

    Attributes
    ----------
    name : {"classification", "binary", "multilabel", "regression", "next-token"}
        The kind of targets.
    outputs : int
        Numbers per sample, or per place, that a model gives.
    loss : str or callable
        One of `LOSSES`, or a function of your own: (outputs, targets) → one loss per sample [B].
    score : str
        What models are judged by; larger is better.
    """

    name: str
    outputs: int
    loss: str | Losses
    score: str

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return one loss per sample, [B]."""
        function = LOSSES[self.loss] if isinstance(self.loss, str) else self.loss
        return function(outputs, targets)

    @property
    def is_plain(self) -> bool:
        """Whether it is classification by cross-entropy, all that some accelerators know."""
        return self.name == "classification" and self.loss == "cross-entropy"

    def counts(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return what the score is computed from, summed over samples: float64 [S, ...]."""
        if self.name in ("classification", "next-token"):
            right = _per_sample((outputs.argmax(-1) == targets).double())
            return right.sum()[None]
        if self.name == "regression":
            y = targets.double().view(len(targets), -1)
            away = y - outputs.double().view(y.shape)
            return torch.stack([away.square().sum(0), y.sum(0), y.square().sum(0)])
        given = targets.bool()
        found = (outputs.squeeze(1) if outputs.dim() > given.dim() else outputs) > 0
        if self.name == "binary":
            return (found == given).double().sum()[None]
        pairs = (found & given), (found & ~given), (~found & given)
        return torch.stack([pair.double().sum() for pair in pairs])

    def score_of(self, counts: Tensor, samples: int) -> Tensor:
        """Return the score from the sum of `counts`, float64 []."""
        if self.name == "regression":
            residual, total, squares = counts
            spread = (squares - total.square() / samples).clamp(min=1e-300)
            fit: Tensor = 1 - residual / spread
            return fit.mean()
        if self.name == "multilabel":
            hit, wrong, missed = counts
            f1: Tensor = 2 * hit / (2 * hit + wrong + missed).clamp(min=1)
            return f1
        return counts[0] / samples


_TASKS = {
    "classification": ("cross-entropy", "accuracy"),
    "binary": ("logit", "accuracy"),
    "multilabel": ("logit", "F1"),
    "regression": ("squared", "R²"),
    "next-token": ("cross-entropy", "accuracy"),
}


def make_task(name: str, classes: int, loss: str | Losses = "auto") -> Task:
    """Make the task of a data set's kind of targets.

    `classes` counts classes, labels, targets or tokens; the loss ``auto`` is the usual one.
    """
    usual, score = _TASKS[name]
    if isinstance(loss, str) and loss not in ("auto", *LOSSES):
        raise UnknownNameError("loss", loss, ["auto", *LOSSES])
    outputs = 1 if name == "binary" else classes
    return Task(name, outputs, usual if loss == "auto" else loss, score)


def classification(classes: int) -> Task:
    """Make the usual task."""
    return make_task("classification", classes)
