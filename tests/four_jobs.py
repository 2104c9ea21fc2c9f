"""Local trainings that trainers are compared on."""

import torch

from fedcohort.training.plan import Jobs


def four_jobs(sizes):
    """Return jobs of four clients of two runs, of different sizes and with different work."""
    ends = torch.tensor(sizes).cumsum(0)
    return Jobs(
        model=torch.tensor([0, 1, 1, 0]),
        start=ends - torch.tensor(sizes),
        size=torch.tensor(sizes),
        key=torch.tensor([5, 6, 7, 8]),
        passes=torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64),
    )
