"""Clients' updates on a GPU: with millions of numbers each, they take long to send to the host.

The rules that compare updates need their inner products alone, a few numbers for each two clients.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcohort.selection import Selector
from fedcohort.selection.update_products import UpdateSelector


class DeviceUpdates:
    """The last updates of the clients of one run; see `UpdateTable`.

    Parameters
    ----------
    clients : int
        How many there are; their ids are 0, 1, ….
    device : torch.device
        Where the updates are.
    """

    def __init__(self, clients: int, device: torch.device) -> None:
        self._updates = torch.zeros(clients, 0, device=device)

    def put(self, ids: NDArray[np.int64], updates: Tensor | NDArray[np.float32]) -> None:
        """Keep the updates [m, d] of clients `ids` [m]."""
        given = torch.as_tensor(updates, device=self._updates.device)
        if not self._updates.numel():
            self._updates = given.new_zeros(len(self._updates), given.shape[1])
        self._updates[torch.tensor(ids)] = given

    def get(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the updates [m, d] of clients `ids` [m]."""
        return self._updates[torch.tensor(ids)].cpu().numpy()

    def products(self, ids: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the inner products [m, n] of two lists of clients, 0 where one is unknown."""
        left, right = (self._updates[torch.tensor(which)] for which in (ids, others))
        return (left @ right.T).double().cpu().numpy()


def keep_on_device(selector: Selector, clients: int, device: torch.device) -> None:
    """Have a selector's updates stay on a GPU, if inner products are all that it needs of them."""
    rule = selector.innermost
    if device.type == "cuda" and isinstance(rule, UpdateSelector) and rule.only_products:
        rule.keep_updates_in(DeviceUpdates(clients, device))


def as_told(selector: Selector, updates: Tensor) -> Any:
    """Return updates in the form in which a selector hears them."""
    return updates if stay_on_device(selector) else updates.cpu().numpy()


def finite_rows(answers: Tensor | NDArray[Any]) -> NDArray[np.bool_]:
    """Tell whose answers [m, ...], wherever they are, are numbers: bool [m]."""
    given = torch.as_tensor(answers)
    finite: NDArray[np.bool_] = given.reshape(len(given), -1).isfinite().all(1).cpu().numpy()
    return finite


def stay_on_device(selector: Selector) -> bool:
    """Tell whether a selector's updates stay where they are."""
    rule = selector.innermost
    return isinstance(rule, UpdateSelector) and not rule.keeps_updates
