"""What is learned: the loss of a sample, and the score that models are judged by.

=================  =========================================  ==============================
task               loss by default                            score, the default first
=================  =========================================  ==============================
classification     cross-entropy                              accuracy
binary             cross-entropy of one logit                 accuracy; F1; AUROC
multilabel         mean cross-entropy of one logit per label  F1, over all labels together;
                                                              AUROC, mean over the labels
regression         mean squared error                         R², mean over the targets
next-token         mean cross-entropy over the places         accuracy over the places
=================  =========================================  ==============================
"""

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from fedcohort.errors import InvalidParameterError, UnknownNameError
from fedcohort.references import load_reference

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

    def judge(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return what the score is computed from, one row per sample: float64 [B, ...]."""
        if self.name in ("classification", "next-token"):
            return _per_sample((outputs.argmax(-1) == targets).double())
        if self.name == "regression":
            y = targets.double().view(len(targets), -1)
            away = y - outputs.double().reshape(y.shape)
            return torch.stack([away.square(), y], dim=1)
        given = targets.bool().view(len(targets), -1)
        logits = outputs.reshape(given.shape)
        if self.score == "AUROC":
            return torch.stack([logits.double(), given.double()], dim=1)
        found = logits > 0
        if self.score == "accuracy":
            return (found == given).double().squeeze(1)
        pairs = (found & given), (found & ~given), (~found & given)
        return torch.stack([pair.sum(1).double() for pair in pairs], dim=1)

    def score_of(self, judged: Tensor) -> Tensor:
        """Return the score of n samples from what `judge` returned, float64 [n, ...] → [].

        It is not a number where it is not defined: R² of targets that are all equal, AUROC of
        labels that are all the same.
        """
        if self.score == "accuracy":
            return judged.mean()
        if self.score == "R²":
            residual, y = judged.unbind(1)
            spread = (y - y.mean(0)).square().sum(0)
            return (1 - residual.sum(0) / spread)[spread > 0].mean()
        if self.score == "AUROC":
            return auroc(*judged.unbind(1)).nanmean()
        hit, wrong, missed = judged.sum(0)
        f1: Tensor = 2 * hit / (2 * hit + wrong + missed).clamp(min=1)
        return f1

    def scores_of(self, judged: Tensor, sizes: Tensor) -> Tensor:
        """Return the scores of m groups of samples, float64 [m].

        `judged` [total, ...] is what `judge` returned of the groups one after the other, which have
        `sizes` [m].
        """
        if self.score == "accuracy":
            return torch.segment_reduce(judged, "mean", lengths=sizes)
        groups = torch.split(judged, sizes.tolist())
        return torch.stack([self.score_of(group) for group in groups])


def auroc(logits: Tensor, given: Tensor) -> Tensor:
    """Return the area under the ROC curve of each label, float64 [L].

    It is the probability that a sample with the label (1 in `given` [n, L]) has a larger logit than
    one without it; equal logits count half. Not a number for a label that all samples have, or
    none.
    """
    areas = []
    for column, has in zip(logits.unbind(1), given.unbind(1), strict=True):
        _, place, count = torch.unique(column, return_inverse=True, return_counts=True)
        last = count.cumsum(0).double()
        rank = (last - (count - 1) / 2)[place]
        positive = has.sum()
        pairs = positive * (len(has) - positive)
        areas.append(((rank * has).sum() - positive * (positive + 1) / 2) / pairs)
    return torch.stack(areas)


# The usual loss of each kind of targets, and its scores, the usual one first.
_TASKS = {
    "classification": ("cross-entropy", ("accuracy",)),
    "binary": ("logit", ("accuracy", "F1", "AUROC")),
    "multilabel": ("logit", ("F1", "AUROC")),
    "regression": ("squared", ("R²",)),
    "next-token": ("cross-entropy", ("accuracy",)),
}


def make_task(name: str, classes: int, loss: str | Losses = "auto", score: str = "auto") -> Task:
    """Make a task: the kind of targets that a `Dataset` has, its usual loss and score unless given.

    A loss is as in `find_loss`. Raises `InvalidParameterError` for a score that the task has not.
    """
    usual, scores = _TASKS[name]
    loss = find_loss(loss)
    if score not in ("auto", *scores):
        raise InvalidParameterError(
            f"score of the run is {score!r}, and models of the task {name} are judged by"
            f" {' or '.join(scores)}: take that, or auto."
        )
    outputs = 1 if name == "binary" else classes
    chosen = scores[0] if score == "auto" else score
    return Task(name, outputs, usual if loss == "auto" else loss, chosen)


def find_loss(loss: str | Losses) -> str | Losses:
    """Return a loss: the name of one of fedcohort's own, ``auto`` among them, or a function.

    A function may be given by a reference (``module:function``, ``FILE.py:function``); it takes
    (outputs, targets) and returns one loss per sample.
    """
    if not isinstance(loss, str) or loss in ("auto", *LOSSES):
        return loss
    if ":" not in loss:
        raise UnknownNameError("loss", loss, ["auto", *LOSSES, "module:function"])
    found = load_reference(loss, "loss", InvalidParameterError)
    if not callable(found):
        raise InvalidParameterError(f"Loss {loss!r} is not callable: give a function.")
    return found  # type: ignore[no-any-return]


def classification(classes: int) -> Task:
    """Make the usual task."""
    return make_task("classification", classes)
