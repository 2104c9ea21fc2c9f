"""How a run's clients train in a round."""

from fedcohort.simulation.config import RunConfig
from fedcohort.training.augmentation import read_augmentation
from fedcohort.training.problem import LocalWork
from fedcohort.training.schedule import rate_in_round


def local_work(config: RunConfig, turn: int) -> LocalWork:
    """Return how clients descend in a round, of which the first is 1."""
    return LocalWork(
        config.batch_size,
        rate_in_round(config.lr, config.lr_decay, turn, config.rounds),
        config.momentum,
        config.proximal,
        config.optimizer,
        config.nesterov,
        config.weight_decay,
        config.clip,
        read_augmentation(config.augment),
    )
