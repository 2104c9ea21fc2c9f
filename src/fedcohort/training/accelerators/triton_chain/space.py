"""What all layers of a network share: its size, and the batches it is given."""

import dataclasses

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Space:
    """The size and kind of a network's buffers.

    Attributes
    ----------
    models, batch : int
        How many models there are, and how many samples each sees in a step.
    dtype : torch.dtype
        What is multiplied: bfloat16, or float32 (which tensor cores read as TF32). Master weights
        are float32 always.
    device : torch.device
        Where.
    momentum, proximal, training : bool
        Whether velocities and first weights are kept, and whether there is a backward pass.
    """

    models: int
    batch: int
    dtype: torch.dtype
    device: torch.device
    momentum: bool = False
    proximal: bool = False
    training: bool = True

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return room for something of every model: [M, ...]."""
        return torch.empty(self.models, *shape, dtype=dtype or self.dtype, device=self.device)

    def zeros(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return zeros for every model: [M, ...]."""
        return torch.zeros(self.models, *shape, dtype=dtype or self.dtype, device=self.device)


@dataclasses.dataclass(frozen=True)
class Batches:
    """What is trained on or evaluated, as the kernels read it.

    Attributes
    ----------
    images : [N, ...]
        The data set in the working precision, images as [height, width, channels].
    labels : int64 [N]
        Classes.
    sample : int32 [T, M, B], or [B] where all models see the same
        Indices into the data set.
    count : int32 [T, M]
        Samples of each model's batch.
    step : int32 [1]
        Which of the T batches is next.
    lr : float32 [1]
        The learning rate, which may change from round to round.
    """

    images: Tensor
    labels: Tensor
    sample: Tensor
    count: Tensor
    step: Tensor
    lr: Tensor

    @property
    def turn(self) -> tuple[Tensor, Tensor, Tensor]:
        """What kernels need to find a model's samples."""
        return self.sample, self.step, self.count

    @property
    def shared(self) -> bool:
        """Whether all models see the same samples."""
        return self.sample.dim() == 1


@dataclasses.dataclass(frozen=True)
class Weights:
    """A matrix of every model: the float32 master, and what goes with it.

    Attributes
    ----------
    master : float32 [M, ...]
        What is updated.
    work : [M, ...]
        Its copy in the working precision, or the master itself.
    velocity : float32 [M, ...], optional
        Of gradient descent with momentum.
    anchor : float32 [M, ...], optional
        The first weights, to which a proximal term draws.
    """

    master: Tensor
    work: Tensor
    velocity: Tensor | None
    anchor: Tensor | None

    @classmethod
    def zeros(cls, space: Space, *shape: int) -> "Weights":
        """Return weights that are 0."""
        master = space.zeros(*shape, dtype=torch.float32)
        work = master if space.dtype == torch.float32 else space.zeros(*shape)
        velocity = torch.zeros_like(master) if space.momentum else None
        return cls(master, work, velocity, torch.zeros_like(master) if space.proximal else None)

    @property
    def buffers(self) -> tuple[Tensor | None, ...]:
        """All of them, as kernels that descend are given them."""
        return self.master, self.work, self.velocity, self.anchor

    @property
    def copied(self) -> bool:
        """Whether there is a working copy."""
        return self.work is not self.master

    def refresh(self) -> None:
        """Begin anew from the master, which is also the first weights."""
        if self.copied:
            self.work.copy_(self.master)
        if self.velocity is not None:
            self.velocity.zero_()
        if self.anchor is not None:
            self.anchor.copy_(self.master)
