"""The value that every loader returns."""

import dataclasses
import functools

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
Samples = npt.NDArray[np.uint8] | npt.NDArray[np.float32]


_VALUES_AT_ONCE = 2**16


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Samples with their classes, ready to be divided over clients.

    Parameters
    ----------
    name : str
        How the data set was asked for.
    x_train, x_test : uint8 or float32 array, shape [N, channels, H, W] or [N, F]
        The samples as stored. ``x / scale`` is what a model is given; keeping bytes makes MNIST
        47 MB and lets the conversion happen on the device. `x_test` may have length 0.
    y_train, y_test : int64 array, shape [N]
        The classes, 0 to classes - 1.
    classes : int
        The number of classes.
    scale : float, default 1
        What to divide samples by: 255 for bytes, 16 for digits, 1 for floats.
    class_names : tuple of str
        The labels as the data set has them, in the order of the classes.
    client : int64 array, shape [N], or None
        The client that holds each training sample, where the data set says so.
    client_names : tuple of str
        The names of those clients; empty where the data set has none.
    """

    name: str
    x_train: Samples
    y_train: IntArray
    x_test: Samples
    y_test: IntArray
    classes: int
    scale: float = 1.0
    class_names: tuple[str, ...] = ()
    client: IntArray | None = None
    client_names: tuple[str, ...] = ()

    @functools.cached_property
    def mean(self) -> float:
        """Mean of all training values after division by `scale` (MNIST: 0.1307)."""
        return float(np.mean(self.x_train, dtype=np.float64)) / self.scale

    @functools.cached_property
    def std(self) -> float:
        """Their standard deviation (MNIST: 0.3081), or 1 where all values are equal."""
        # A few samples at a time: a float copy of all of MNIST would take eight times its memory.
        pieces = np.array_split(self.x_train, -(-self.x_train.size // _VALUES_AT_ONCE))
        square = sum(float(v @ v) for v in (p.astype(np.float64).ravel() for p in pieces))
        variance = square / self.x_train.size / self.scale**2 - self.mean**2
        return float(np.sqrt(variance)) if variance > 1e-12 else 1.0
