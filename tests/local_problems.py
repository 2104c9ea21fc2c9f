"""Local trainings that trainers are compared on."""

import copy
import dataclasses

import torch

from fedcohort.training.augmentation import Augmentation
from fedcohort.training.problem import Jobs, LocalProblem, LocalWork
from fedcohort.training.task import classification

SIZES = (13, 27, 20, 30)
# Everything that SGD can be asked for.
MUCH = LocalWork(
    8,
    0.05,
    0.9,
    0.3,
    nesterov=True,
    weight_decay=0.01,
    clip=1.0,
    augmentation=Augmentation(2, True),
)


def four_clients(model, shape, work, *, classes=10, sizes=SIZES, dtype=torch.float32):
    """Return the problem of four clients of two runs, of different sizes and with different work.

    The second run's model is not the first's: all of its parameters are a tenth smaller.
    """
    generator = torch.Generator().manual_seed(0)
    total = sum(sizes)
    ends = torch.tensor(sizes).cumsum(0)
    jobs = Jobs(
        model=torch.tensor([0, 1, 1, 0]),
        start=ends - torch.tensor(sizes),
        size=torch.tensor(sizes),
        key=torch.tensor([5, 6, 7, 8]),
        passes=torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64),
    )
    x = torch.randn(total, *shape, generator=generator)
    y = torch.randint(0, classes, (total,), generator=generator)
    pool = torch.randperm(total, generator=generator)
    first = {name: values.detach() for name, values in model.named_parameters()}
    stacked = {name: torch.stack([values, 0.9 * values]) for name, values in first.items()}
    problem = LocalProblem(model, stacked, jobs, (x, y), pool, work, classification(classes))
    return problem if dtype == torch.float32 else in_double(problem)


def in_double(problem):
    """Return the same problem in float64."""
    x, y = problem.data
    return dataclasses.replace(
        problem,
        model=copy.deepcopy(problem.model).double(),
        stacked={name: values.double() for name, values in problem.stacked.items()},
        data=(x.double(), y),
    )


def stacked_parameters(models):
    """Return the parameters of models of one architecture, stacked."""
    return {
        name: torch.stack([model.get_parameter(name).detach() for model in models])
        for name, _ in models[0].named_parameters()
    }
