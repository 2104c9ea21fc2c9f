"""The result of every partition: which samples each client holds."""

import dataclasses
import functools

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """Which samples each client holds, in compressed rows.

    Parameters
    ----------
    indices : int64 array, shape [total]
        Sample numbers, client after client.
    offsets : int64 array, shape [C + 1]
        Client c holds ``indices[offsets[c]:offsets[c + 1]]``.

    Examples
    --------
    >>> partition = Partition(np.array([2, 0, 1]), np.array([0, 1, 3]))
    >>> partition.sizes
    array([1, 2])
    """

    indices: IntArray
    offsets: IntArray

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.offsets) - 1

    @functools.cached_property
    def sizes(self) -> IntArray:
        """Samples held by each client, shape [C]."""
        return np.diff(self.offsets)

    def of(self, client: int) -> IntArray:
        """Return the sample numbers of one client, shape [n_c]."""
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def label_counts(self, labels: npt.ArrayLike, classes: int) -> IntArray:
        """Count each client's samples by class.

        Parameters
        ----------
        labels : int array, shape [total samples]
            The class of every sample of the data set, 0 to classes - 1.
        classes : int
            The number of classes N.

        Returns
        -------
        int64 array, shape [C, N]
        """
        held = np.asarray(labels)[self.indices]
        owners = np.repeat(np.arange(len(self)), self.sizes)
        flat = np.bincount(owners * classes + held, minlength=len(self) * classes)
        return flat.reshape(len(self), classes).astype(np.int64)

    @classmethod
    def from_owners(cls, owners: npt.ArrayLike, clients: int) -> "Partition":
        """Group samples by the client that owns each.

        Parameters
        ----------
        owners : int array, shape [total]
            The client of every sample, 0 to clients - 1.
        clients : int
            The number of clients C.
        """
        owner = np.asarray(owners, dtype=np.int64)
        return cls(
            np.argsort(owner, kind="stable"), offsets_of(np.bincount(owner, minlength=clients))
        )


def offsets_of(sizes: IntArray) -> IntArray:
    """Return where each client begins, shape [C + 1], from the clients' sizes [C]."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
