"""One step of local gradient descent, for the trainers that write it out.

SGD with momentum, Nesterov's variant and weight decay as in `torch.optim.SGD`; AdamW as in
`torch.optim.AdamW` (I. Loshchilov, F. Hutter: Decoupled Weight Decay Regularization, ICLR 2019).
Before either, gradients get FedProx's term and are clipped to a norm, if so wished.
"""

import torch
from torch import Tensor

from fedcohort.training.problem import LocalWork, per_model

BETAS = (0.9, 0.999)
EPSILON = 1e-8


class Descent:
    """What one client's optimiser remembers, or that of M clients that are stacked.

    Parameters
    ----------
    work : LocalWork
        Which optimiser, and how.
    first : list of Tensor
        Where local training starts; read with a proximal term.
    stacked : bool
        Whether tensors are [M, ...], one model per row.
    """

    def __init__(self, work: LocalWork, first: list[Tensor], *, stacked: bool = False) -> None:
        self._work, self._first, self._stacked = work, first, stacked
        self._steps = 0
        self._mean: list[Tensor] = []
        self._square: list[Tensor] = []

    @torch.no_grad()
    def direction(self, parameters: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        """Return what to step against, ``parameters -= lr * direction``; changes `gradients`."""
        work = self._work
        self._steps += 1
        if work.proximal:
            away = torch._foreach_sub(parameters, self._first)
            torch._foreach_add_(gradients, away, alpha=work.proximal)
        if work.clip is not None:
            self._clip(gradients, work.clip)
        if work.optimizer == "adamw":
            return self._adamw(parameters, gradients)
        if work.weight_decay:
            torch._foreach_add_(gradients, parameters, alpha=work.weight_decay)
        if not work.momentum:
            return gradients
        if self._mean:
            torch._foreach_mul_(self._mean, work.momentum)
            torch._foreach_add_(self._mean, gradients)
        else:
            self._mean = [g.clone() for g in gradients] if work.nesterov else gradients
        if work.nesterov:
            torch._foreach_add_(gradients, self._mean, alpha=work.momentum)
            return gradients
        return self._mean

    def _clip(self, gradients: list[Tensor], most: float) -> None:
        """Scale gradients down to a norm of at most `most`, each model by itself."""
        if self._stacked:
            rows = (g.reshape(len(g), -1) for g in gradients)
            norms = [torch.linalg.vector_norm(row, dim=1) for row in rows]
        else:
            norms = [torch.linalg.vector_norm(g) for g in gradients]
        norm = torch.linalg.vector_norm(torch.stack(norms), dim=0)
        scale = (most / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            own = per_model(scale, gradient) if self._stacked else scale
            gradient.mul_(own)

    def _adamw(self, parameters: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        work = self._work
        if not self._mean:
            self._mean = [torch.zeros_like(g) for g in gradients]
            self._square = [torch.zeros_like(g) for g in gradients]
        torch._foreach_lerp_(self._mean, gradients, 1 - BETAS[0])
        torch._foreach_mul_(self._square, BETAS[1])
        torch._foreach_addcmul_(self._square, gradients, gradients, 1 - BETAS[1])
        along, straight = (1 - beta**self._steps for beta in BETAS)
        roots = torch._foreach_sqrt(self._square)
        torch._foreach_div_(roots, straight**0.5)
        torch._foreach_add_(roots, EPSILON)
        moves = list(torch._foreach_div(self._mean, roots))
        torch._foreach_div_(moves, along)
        if work.weight_decay:
            torch._foreach_add_(moves, parameters, alpha=work.weight_decay)
        return moves
