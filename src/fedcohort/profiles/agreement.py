"""How far the gradients of a client's own samples agree: one number that says how one-sided it is.

Let g be the gradient of a sample's loss by the outputs of the initial model, which is also its
gradient by the biases of the output layer. The agreement of a set of samples is

    ‖mean g‖² / mean ‖g‖²,

from 0, where their gradients cancel, to 1, where all pull the same way. For a classifier that knows
nothing yet, g is 1 / K less the label: samples of one class agree by 1, and samples of K equally
frequent classes by 0. It is the inverse of the gradient diversity of D. Yin et al.: Gradient
Diversity, AISTATS 2018, for one layer and without the number of samples.

Where every sample has a class, the means weigh a class by the root of its frequency among the
client's samples. A model that trains there for some steps soon knows what is frequent and learns
from the rest, so that a client of 80 % one class pulls less than one that lacks classes: see "Is it
true?" in docs/advise.md.
"""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedcohort.profiles.gradients import cross_entropy


@dataclasses.dataclass(frozen=True)
class OutputGradients:
    """The gradients of m clients' samples by the outputs of the initial model.

    Attributes
    ----------
    means : float64 [m, K]
        The mean of g over each client's samples, its classes weighed by roots.
    squares : float64 [m]
        The mean of ‖g‖², likewise.

    Examples
    --------
    >>> mean, square = torch.tensor([[0.3, -0.4]]), torch.tensor([0.5])
    >>> OutputGradients(mean.double(), square.double()).agreements.round(decimals=3)
    tensor([0.5000], dtype=torch.float64)
    """

    means: Tensor
    squares: Tensor

    @property
    def agreements(self) -> Tensor:
        """Each client's agreement, float64 [m]; 0 where all gradients are 0."""
        return _ratio(self.means.square().sum(1), self.squares)

    def shared(self, sizes: Tensor) -> float:
        """Return the agreement of what clients of `sizes` [m] have together."""
        share = sizes.double() / sizes.sum()
        return float(_ratio((share @ self.means).square().sum(), share @ self.squares))


@torch.no_grad()
def output_gradients(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    samples: Tensor,
    sizes: Tensor,
    losses: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    *,
    samples_at_once: int = 2000,
) -> OutputGradients:
    """Return the gradients of m clients by the outputs of the initial model, and what they make.

    A client that computes its own agreement has m = 1.

    Parameters
    ----------
    model : nn.Module
        The initial global model.
    x, y : [N, ...]
        The whole data set.
    samples : int64 [total]
        Sample indices, client after client.
    sizes : int64 [m]
        Samples of each client.
    losses : callable
        (outputs, targets) → one loss per sample.
    samples_at_once : int
        Samples per forward pass.

    Examples
    --------
    >>> model = nn.Linear(4, 2)
    >>> y, clients = torch.tensor([0, 0, 0, 1]), (torch.arange(4), torch.tensor([2, 2]))
    >>> pure, mixed = output_gradients(model, torch.zeros(4, 4), y, *clients).agreements
    >>> float(pure)
    1.0
    >>> bool(mixed < 0.5)
    True
    """
    rows = torch.cat(
        [
            _by_outputs(model(x[part]), y[part], losses)
            for part in torch.split(samples, samples_at_once)
        ]
    )
    weights = _root_weights(y[samples], sizes)
    means, squares = (
        _segment_sums(values * weights[:, None], sizes)
        for values in (rows, rows.square().sum(1, keepdim=True))
    )
    return OutputGradients(means, squares[:, 0])


def _root_weights(y: Tensor, sizes: Tensor) -> Tensor:
    """Return what samples of classes y [total] weigh, float64 [total]: 1 over each client."""
    client = torch.repeat_interleave(torch.arange(len(sizes), device=y.device), sizes)
    weights = torch.ones(len(y), dtype=torch.float64, device=y.device)
    if y.dim() == 1 and not y.is_floating_point():
        classes, kind = torch.unique(y, return_inverse=True)
        _, own, counts = torch.unique(
            client * len(classes) + kind, return_inverse=True, return_counts=True
        )
        weights = counts[own].double().rsqrt()
    return weights / _segment_sums(weights[:, None], sizes)[client, 0]


def _segment_sums(values: Tensor, sizes: Tensor) -> Tensor:
    """Return sums [m, n] of values [total, n], client after client."""
    return torch.segment_reduce(values, "sum", lengths=sizes, axis=0)


def _by_outputs(
    outputs: Tensor, targets: Tensor, losses: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return g of every sample, float64 [n, K]; the places of a sequence are summed."""
    with torch.enable_grad():
        outputs = outputs.detach().requires_grad_()
        (gradients,) = torch.autograd.grad(losses(outputs, targets).sum(), outputs)
    gradients = gradients.double()
    return gradients.sum(1) if gradients.dim() == 3 else gradients.flatten(1)


def _ratio(square: Tensor, of: Tensor) -> Tensor:
    return torch.where(of > 0, square / of, 0.0).clamp(max=1.0)
