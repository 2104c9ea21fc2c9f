"""The value that every loader returns."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedcohort.errors import InvalidInputError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
# Their types are known when they are there, not before: `Dataset` checks them.
Samples = npt.NDArray[Any]
Targets = npt.NDArray[Any]

INPUTS = ("image", "table", "tokens")
TASKS = ("classification", "binary", "multilabel", "regression", "next-token")

_VALUES_AT_ONCE = 2**16
_QUANTILE_BINS = 10
_MOST_LABEL_SETS = 100
_CHANNELS_OF_PICTURES = (1, 3, 4)
_COUNTED = {"multilabel": "label", "regression": "target", "next-token": "token"}
# What is left out becomes an array before anybody sees it.
_LEFT_OUT: Any = None


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Samples with their targets, ready to be divided over clients.

    Parameters
    ----------
    name : str
        How the data set was asked for.
    x_train, x_test : array, shape [N, channels, H, W], [N, F] or [N, T]
        The samples as stored: images (uint8 or float32), rows of a table (uint8 or float32) or
        tokens (uint8, int32 or int64, each at least 0). ``x / scale`` is what a model is given of
        images and tables; keeping bytes makes MNIST 47 MB and lets the conversion happen on the
        device. Either may be memory-mapped. Without `x_test` and `y_test` there is no test part.

        Images are channels first. A shape [N, H, W, C] is refused where it is plain: the last axis
        is 1, 3 or 4 and no other is.
    y_train, y_test : array, shape [N], [N, D], [N, L] or [N, T]
        The targets, by `task`:

        - ``classification``, ``binary``: int64 [N], 0 to classes - 1;
        - ``multilabel``: uint8 or bool [N, L], 0 or 1;
        - ``regression``: float32 [N] or [N, D];
        - ``next-token``: int64 [N] (the token after the sample) or [N, T] (after each place).
    classes : int
        The number of classes (2 when binary), of labels L, of regression targets D, or of tokens
        that can come next.
    scale : float, default 1
        What to divide samples by: 255 for bytes, 16 for digits, 1 for floats.
    class_names : tuple of str
        The labels as the data set has them, in the order of the classes; may be empty.
    client : int64 array, shape [N], or None
        The client that holds each training sample, where the data set says so.
    client_names : tuple of str
        The names of those clients; empty where the data set has none.
    task : str, default "classification"
        What is to be learned, one of `TASKS`.
    inputs : str
        What a sample is, one of `INPUTS`. By default four axes are images, two of int32 or int64
        are tokens, and two of anything else are a table.
    test_client : int64 array, shape [N_test], or None
        The client that each test sample comes from, where the data set says so.
    test_client_names : tuple of str
        The names of those clients: `client_names`, or other people.

    Raises
    ------
    InvalidInputError
        One sentence about the first of these rules that is broken.

    Examples
    --------
    >>> x, y = np.zeros((60, 4), np.float32), np.arange(60) % 3
    >>> data = Dataset("mine", x[:50], y[:50], x[50:], y[50:], classes=3)
    >>> data.name, data.classes
    ('mine', 3)
    """

    name: str
    x_train: Samples
    y_train: Targets
    x_test: Samples = _LEFT_OUT
    y_test: Targets = _LEFT_OUT
    classes: int = 0
    scale: float = 1.0
    class_names: tuple[str, ...] = ()
    client: IntArray | None = None
    client_names: tuple[str, ...] = ()
    task: str = "classification"
    inputs: str = ""
    test_client: IntArray | None = None
    test_client_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("x_train", "y_train", "x_test", "y_test", "client", "test_client"):
            value = getattr(self, name)
            if value is None and name in ("x_test", "y_test"):
                value = getattr(self, f"{name[0]}_train")[:0]
                object.__setattr__(self, name, value)
            if not isinstance(value, np.ndarray) and (value is not None or "client" not in name):
                self._refuse(
                    f"{name} is a {type(value).__name__}", "it must be an array, numpy.asarray(...)"
                )
        if not isinstance(self.classes, int | np.integer) or self.classes < 1:
            self._refuse(f"classes is {self.classes!r}", "it must be a whole number above 0")
        if not 0 < self.scale < np.inf:
            self._refuse(f"the scale is {self.scale}", "it must be a finite number above 0")
        if not self.inputs:
            object.__setattr__(self, "inputs", inputs_of(self.x_train))
        if self.task not in TASKS:
            self._refuse(f"the task is {self.task!r}", f"it must be one of {', '.join(TASKS)}")
        if self.task == "binary" and self.classes != 2:
            self._refuse(f"there are {self.classes} classes", "the task binary has 2")
        self._check_samples()
        self._check_targets("y_train", self.y_train, len(self.x_train))
        self._check_targets("y_test", self.y_test, len(self.x_test))
        self._check_owners("client", self.client, len(self.x_train), self.client_names)
        self._check_owners(
            "test_client", self.test_client, len(self.x_test), self.test_client_names
        )

    def __repr__(self) -> str:
        """Say in one line what there is."""
        sizes = self.x_train.shape[1:]
        shape = {
            "image": "images of " + " × ".join(map(str, sizes)),
            "table": _count(sizes[0], "column"),
            "tokens": f"texts of {_count(sizes[0], 'token')}",
        }[self.inputs]
        task = f"{self.task} with {_count(self.classes, _COUNTED.get(self.task, 'class'))}"
        own = self.client is not None
        clients = _count(len(self.client_names), "client") if own else "no clients of its own"
        test = f"{len(self.x_test):,} for testing" if len(self.x_test) else "no test part"
        samples = _count(len(self.x_train), "sample")
        return f"{self.name}: {samples} and {test}, {shape}, {task}, {clients}"

    @classmethod
    def from_partitions(cls, partitions: Sequence[Any], **options: Any) -> "Dataset":
        """Make a data set of one table per client; see `huggingface.from_partitions`."""
        from fedcohort.federation.huggingface import from_partitions

        return from_partitions(partitions, **options)

    @functools.cached_property
    def mean(self) -> float:
        """Mean of all training values together after division by `scale` (MNIST: 0.1307)."""
        return float(self._overall[0][0])

    @functools.cached_property
    def std(self) -> float:
        """Their standard deviation (MNIST: 0.3081), or 1 where all values are equal."""
        return float(self._overall[1][0])

    def standardisation(self) -> tuple[FloatArray, FloatArray] | None:
        """Return the mean and the standard deviation that samples are standardised with.

        Returns
        -------
        (mean, std) : float32 arrays, shape [channels, 1, 1] or [F]
            Of ``x_train / scale``, by channel or by column; the deviation is 1 where all values
            are equal. None for tokens, which are names and not quantities.
        """
        if self.inputs == "tokens":
            return None
        mean, std = self._by_channel
        shape = (-1, 1, 1) if self.inputs == "image" else (-1,)
        return mean.astype(np.float32).reshape(shape), std.astype(np.float32).reshape(shape)

    @functools.cached_property
    def _overall(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        single = self.x_train.ndim == 4 and self.x_train.shape[1] == 1
        return self._by_channel if single else moments(self.x_train, 1, self.scale)

    @functools.cached_property
    def _by_channel(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        return moments(self.x_train, self.x_train.shape[1], self.scale)

    @functools.cached_property
    def vocabulary(self) -> int:
        """How many different tokens samples can hold: one more than the largest; else 0."""
        if self.inputs != "tokens":
            return 0
        largest = max(int(x.max()) for x in (self.x_train, self.x_test) if len(x))
        return max(largest + 1, self.classes if self.task == "next-token" else 0)

    @functools.cached_property
    def label_groups(self) -> IntArray | None:
        """The group of each training sample that label mixtures (GEMD, skews) are counted over.

        Classes are their own groups; of next tokens the last target is; of one regression target
        the tenth (by quantiles of the training samples) that a value falls into; of several labels
        the set of them, as long as there are at most 100 different sets. Otherwise, and for
        several regression targets, there is no such mixture: None.
        """
        y = self.y_train
        if self.task in ("classification", "binary"):
            return y.astype(np.int64, copy=False)
        if self.task == "next-token":
            return y.astype(np.int64, copy=False) if y.ndim == 1 else y[:, -1].astype(np.int64)
        if self.task == "regression":
            if y.size != len(y):
                return None
            inner = np.arange(1, _QUANTILE_BINS) / _QUANTILE_BINS
            edges = np.quantile(y.ravel().astype(np.float64), inner)
            return np.searchsorted(edges, y.ravel(), side="right").astype(np.int64)
        sets, groups = np.unique(np.packbits(y.astype(bool), axis=1), axis=0, return_inverse=True)
        return groups.reshape(-1).astype(np.int64) if len(sets) <= _MOST_LABEL_SETS else None

    @property
    def groups(self) -> int:
        """How many label groups there are; 0 where `label_groups` is None."""
        if self.task in ("classification", "binary", "next-token"):
            return self.classes
        if self.label_groups is None:
            return 0
        return _QUANTILE_BINS if self.task == "regression" else int(self.label_groups.max()) + 1

    def _check_samples(self) -> None:
        x, test = self.x_train, self.x_test
        if self.inputs not in INPUTS:
            self._refuse(f"inputs is {self.inputs!r}", f"it must be one of {', '.join(INPUTS)}")
        dimensions = 4 if self.inputs == "image" else 2
        types = ("uint8", "int32", "int64") if self.inputs == "tokens" else ("uint8", "float32")
        if x.ndim != dimensions or x.dtype.name not in types or 0 in x.shape:
            self._refuse(
                f"x_train has shape {x.shape} and type {x.dtype}",
                f"{self.inputs} samples have {dimensions} axes, none empty, of {'/'.join(types)}",
            )
        if test.shape[1:] != x.shape[1:] or test.dtype.name not in types:
            self._refuse(
                f"x_test has samples of shape {test.shape[1:]} ({test.dtype}) but x_train of "
                f"{x.shape[1:]} ({x.dtype})",
                "they must be alike",
            )
        if self.inputs == "image" and is_channels_last(x.shape):
            self._refuse(
                f"samples have shape {x.shape[1:]}, which reads as height × width × channels",
                "put the channels first, x.transpose(0, 3, 1, 2)",
            )
        self._check_finite("x_train", x)
        self._check_finite("x_test", test)

    def _check_finite(self, name: str, values: npt.NDArray[Any]) -> None:
        if (found := first_not_finite(values)) is not None:
            self._refuse(f"{name} has {found[0]} in row {found[1]}", "remove or fill such samples")

    def _check_targets(self, name: str, y: Targets, samples: int) -> None:
        dimensions, types = {
            "multilabel": ((2,), ("uint8", "bool")),
            "regression": ((1, 2), ("float32",)),
            "next-token": ((1, 2), ("int64",)),
        }.get(self.task, ((1,), ("int64",)))
        if y.ndim not in dimensions or y.dtype.name not in types or len(y) != samples:
            self._refuse(
                f"{name} has shape {y.shape} and type {y.dtype} for {samples} samples",
                f"targets of the task {self.task} are {' or '.join(types)} with "
                f"{' or '.join(map(str, dimensions))} axes and one row for each sample",
            )
        if self.task in ("regression", "multilabel"):
            width = y.shape[1] if y.ndim == 2 else 1
            if width != self.classes:
                self._refuse(
                    f"{name} has {width} columns but classes is {self.classes}",
                    "classes must be the number of columns",
                )
            self._check_finite(name, y)
            if self.task == "multilabel" and y.size and y.max() > 1:
                self._refuse(f"{name} has the value {y.max()}", "several labels are 0 or 1 each")
        elif len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.classes:
            self._refuse(
                f"{name} runs from {y.min()} to {y.max()}",
                f"classes must lie between 0 and {self.classes - 1}",
            )

    def _check_owners(
        self, name: str, owner: IntArray | None, samples: int, names: tuple[str, ...]
    ) -> None:
        if owner is None:
            return
        if owner.shape != (samples,) or owner.dtype.kind not in "iu":
            self._refuse(
                f"{name} has shape {owner.shape} and type {owner.dtype}",
                f"it must give {samples} samples one whole number each",
            )
        if samples and not 0 <= int(owner.min()) <= int(owner.max()) < len(names):
            self._refuse(
                f"{name} runs from {owner.min()} to {owner.max()}",
                f"it must point into the {len(names)} names in {name}_names",
            )

    def _refuse(self, what: str, remedy: str) -> None:
        raise InvalidInputError(f"In the data set {self.name}, {what}: {remedy}.")


def _count(number: int, what: str) -> str:
    ending = "" if number == 1 else "es" if what.endswith("s") else "s"
    return f"{number:,} {what}{ending}"


def inputs_of(x: npt.NDArray[Any]) -> str:
    """Return what samples are taken for when nobody says so."""
    if x.ndim != 2:
        return "image"
    return "tokens" if x.dtype.kind in "iu" and x.dtype != np.uint8 else "table"


def is_channels_last(shape: tuple[int, ...]) -> bool:
    """Tell whether [N, a, b, c] can only be height × width × channels: c alone is 1, 3 or 4."""
    return [size in _CHANNELS_OF_PICTURES for size in shape[1:]] == [False, False, True]


def pieces_of(x: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Give samples a few at a time: a float copy of all of MNIST takes eight times its memory."""
    rows = max(1, _VALUES_AT_ONCE // max(1, x[:1].size))
    for start in range(0, len(x), rows):
        yield x[start : start + rows]


def first_not_finite(values: npt.NDArray[Any]) -> tuple[str, int] | None:
    """Say what is not finite, and in which row of some samples or targets, if anything is."""
    if values.dtype.kind != "f":
        return None
    row = 0
    for piece in pieces_of(values):
        finite = np.isfinite(piece).reshape(len(piece), -1).all(axis=1)
        if not finite.all():
            inside = int(np.argmin(finite))
            what = "NaN" if np.isnan(piece[inside]).any() else "an infinite value (as float32)"
            return what, row + inside
        row += len(piece)
    return None


def moments(
    x: npt.NDArray[Any], channels: int, scale: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return mean and standard deviation of ``x / scale`` by channel, each float64 [channels].

    Sums of bytes and of their squares are exact in any order. Floats are centred first: the square
    of a large mean would swallow a small deviation.
    """
    count = x.size // channels
    total, square = np.zeros(channels), np.zeros(channels)
    low, high = np.full(channels, np.inf), np.full(channels, -np.inf)

    def by_channel() -> Iterator[npt.NDArray[np.float64]]:
        for piece in pieces_of(x):
            values = piece.astype(np.float64).reshape(-1, channels, piece[0].size // channels)
            yield values.reshape(1, 1, -1) if channels == 1 else values

    for values in by_channel():
        total += values.sum(axis=(0, 2))
        low = np.minimum(low, values.min(axis=(0, 2)))
        high = np.maximum(high, values.max(axis=(0, 2)))
        if x.dtype == np.uint8:
            square += np.square(values, out=values).sum(axis=(0, 2))
    mean = total / count / scale
    if x.dtype == np.uint8:
        variance = square / count / scale**2 - mean**2
    else:
        for values in by_channel():
            values -= (total / count)[:, None]
            square += np.square(values, out=values).sum(axis=(0, 2))
        variance = square / count / scale**2
    std = np.sqrt(np.maximum(variance, 0))
    # Nothing below float32's smallest number is divided by, either.
    return mean, np.where((high > low) & (std >= np.finfo(np.float32).tiny), std, 1.0)
