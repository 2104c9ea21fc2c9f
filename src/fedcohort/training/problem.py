"""What a trainer is given and what it returns: one value each."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedcohort.training.augmentation import Augmentation
from fedcohort.training.modules import Traits
from fedcohort.training.task import Task

Parameters = dict[str, Tensor]
Data = tuple[Tensor, Tensor]

_NO_TRAITS = Traits()


@dataclasses.dataclass(frozen=True)
class LocalWork:
    """What a client does with its data.

    Attributes
    ----------
    batch_size : int or None
        Samples per step; None is full batch.
    lr, momentum : float
        Of stochastic gradient descent.
    proximal : float
        FedProx's μ: how strongly a client is drawn back to the global model (T. Li et al.,
        Federated Optimization in Heterogeneous Networks, MLSys 2020).
    optimizer : {"sgd", "adamw"}
        AdamW has no use for `momentum`.
    nesterov : bool
        Whether momentum looks ahead.
    weight_decay : float
        Strength of the pull towards 0.
    clip : float, optional
        The largest norm of a gradient, over all parameters together.
    augmentation : Augmentation, optional
        What is done to images before each step.
    """

    batch_size: int | None
    lr: float
    momentum: float = 0.0
    proximal: float = 0.0
    optimizer: str = "sgd"
    nesterov: bool = False
    weight_decay: float = 0.0
    clip: float | None = None
    augmentation: Augmentation | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is SGD with no more than momentum and FedProx, all that some trainers know."""
        usual = LocalWork(self.batch_size, self.lr, self.momentum, self.proximal)
        return self == usual


@dataclasses.dataclass(frozen=True)
class Jobs:
    """M local trainings to do, each one client of one run; on the host, where they are planned.

    Attributes
    ----------
    model : int64 [M]
        Which of the stacked global models to start from.
    start, size : int64 [M]
        Where the client's samples stand in the pool of sample indices.
    key : int64 [M]
        Decides the order of the client's samples.
    passes : float64 [M]
        Passes over the data; a fraction of a pass is rounded to whole steps, at least one.
    """

    model: Tensor
    start: Tensor
    size: Tensor
    key: Tensor
    passes: Tensor

    def __len__(self) -> int:
        return len(self.model)

    def __getitem__(self, part: slice | Tensor) -> "Jobs":
        """Return some of the jobs."""
        return Jobs(*(getattr(self, field.name)[part] for field in dataclasses.fields(self)))


_NOTHING = torch.zeros(0, dtype=torch.int64)
NO_JOBS = Jobs(_NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING.double())


@dataclasses.dataclass(frozen=True)
class Groups:
    """Samples that are measured group by group: those of a client, or of a class.

    Attributes
    ----------
    samples : int64 [total]
        Indices into the data, group after group.
    sizes : int64 [m]
        Samples of each group, at least one.
    model : int64 [m], optional
        Which of the stacked models each group is measured with; the first if not given.
    """

    samples: Tensor
    sizes: Tensor
    model: Tensor | None = None

    def pieces(self, at_once: int) -> list[tuple[int, Tensor]]:
        """Return the samples in order, at most so many at a time, each time with their model."""
        if self.model is None:
            return [(0, part) for part in torch.split(self.samples, at_once)]
        own = zip(self.model.tolist(), torch.split(self.samples, self.sizes.tolist()), strict=True)
        return [(model, part) for model, all_ in own for part in torch.split(all_, at_once)]

    def means(self, values: Tensor) -> Tensor:
        """Return the mean of one value per sample over each group, float64 [m]."""
        return torch.segment_reduce(values.double(), "mean", lengths=self.sizes)


@dataclasses.dataclass(frozen=True)
class LocalProblem:
    """The local trainings of one round: everything that a trainer needs to know.

    Attributes
    ----------
    model : nn.Module
        The architecture; its own weights are not used.
    stacked : dict of float32 [R, ...]
        Global models of R runs, parameters and buffers; trainers leave them as they are.
    jobs : Jobs
        M jobs.
    data : (float32 or int64 [N, ...], Tensor [N, ...])
        Inputs and targets.
    pool : int64 [total]
        Sample indices, client after client.
    work : LocalWork
        How to descend.
    task : Task
        What is learned.
    traits : Traits
        What the model does besides.
    """

    model: nn.Module
    stacked: Parameters
    jobs: Jobs
    data: Data
    pool: Tensor
    work: LocalWork
    task: Task
    traits: Traits = _NO_TRAITS

    @property
    def device(self) -> torch.device:
        """Where to train."""
        return self.pool.device

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.data[0].shape[1:])

    @property
    def is_plain(self) -> bool:
        """Whether it is plain SGD on classes, of a model that does nothing besides."""
        alone = not (self.traits.draws or self.traits.mixes)
        return alone and self.task.is_plain and self.work.is_plain

    def only(self, part: slice | Tensor) -> "LocalProblem":
        """Return the problem with some of its jobs alone."""
        return dataclasses.replace(self, jobs=self.jobs[part])


@dataclasses.dataclass(frozen=True)
class Trained:
    """Local models.

    Attributes
    ----------
    parameters : dict of float32 [M, ...]
        One local model per job.
    losses : float64 [M]
        Mean loss per sample over all local steps.
    """

    parameters: Parameters
    losses: Tensor


def per_model(values: Tensor, like: Tensor) -> Tensor:
    """Return one value per model [M] in a shape that goes with parameters [M, ...]."""
    return values.view(-1, *[1] * (like.dim() - 1))


def joined(parts: Sequence[Trained]) -> Trained:
    """Return the local models of several trainings as those of one."""
    if len(parts) == 1:
        return parts[0]
    names = parts[0].parameters
    parameters = {name: torch.cat([part.parameters[name] for part in parts]) for name in names}
    return Trained(parameters, torch.cat([part.losses for part in parts]))
