"""Rules that read the output layer's bias, with which an update ends."""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from fedcohort.parameters import Interval, Optional, parameter
from fedcohort.selection.base import Need, Selector

_USUAL = 10


@dataclasses.dataclass(kw_only=True, eq=False)
class OutputBiasSelector(Selector):
    """A selector that keeps the output layer's bias of an update, and nothing else.

    The update is the model's parameters flattened in module order, so that it ends with them.

    Parameters
    ----------
    outputs : int, optional
        How many they are. The simulator, Flower and NVFlare fill in what the model has; in a loop
        of your own None is 10.
    """

    outputs: int | None = parameter(None, Optional(Interval(1, integral=True)))

    def tell(self, need: Need, ids: ArrayLike, values: ArrayLike) -> None:
        """Hear what was asked; of updates, only their end is kept."""
        if need is Need.UPDATE and need in self.needs and np.ndim(values) == 2:
            values = np.asarray(values)[:, -(self.outputs or _USUAL) :]
        super().tell(need, ids, values)
