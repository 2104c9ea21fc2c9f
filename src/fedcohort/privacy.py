"""What differential privacy promises a client, and the noise that keeps the promise.

The Gaussian mechanism (C. Dwork et al.: Our Data, Ourselves, EUROCRYPT 2006), calibrated exactly
for one release by B. Balle, Y.-X. Wang: Improving the Gaussian Mechanism for Differential Privacy,
ICML 2018, as dp-accounting computes it.
"""

import dataclasses
import functools
import os

import numpy as np
import scipy  # its parts are loaded when they are used
from numpy.typing import NDArray

from fedcohort.errors import InvalidParameterError, MissingPackageError, UnknownNameError

# With more, whoever knows all other samples could be right about the last one 96 times in 100.
LARGEST_EPSILON = 20.0


# What a promise can be about: each sample of a client, or all that a client holds.
PROTECTED = ("sample", "client")


@dataclasses.dataclass(frozen=True)
class Promise:
    """What a client is promised about its profile.

    Parameters
    ----------
    epsilon, delta : float
        Replacing what is protected by anything else changes the probability of any outcome by a
        factor of at most e^ε, but for a probability of at most δ.
    protects : {"sample", "client"}
        What is replaced: one sample of the client, or all its data at once. The latter implies the
        former, and that nobody learns whether the client had any data at all.

    Examples
    --------
    >>> round(Promise(epsilon=8).noise(samples=500), 5)
    0.0024
    """

    epsilon: float
    delta: float = 1e-5
    protects: str = "sample"

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= LARGEST_EPSILON:
            raise InvalidParameterError(
                f"An ε of {self.epsilon:g} promises nothing: take one above 0 and at most"
                f" {LARGEST_EPSILON:g}."
            )
        if not 0 < self.delta < 1:
            raise InvalidParameterError(
                f"A δ of {self.delta:g} promises nothing: take one above 0 and below 1 / (samples"
                " of the largest client)."
            )
        if self.protects not in PROTECTED:
            raise UnknownNameError("thing to protect", self.protects, PROTECTED)

    def noise(self, samples: int) -> float:
        """Return σ, the standard deviation of the noise on a mean of `samples` unit vectors.

        Replacing one of the vectors moves the mean by at most 2 / samples, replacing all of them by
        at most 2, however many there are.

        Raises
        ------
        InvalidParameterError
            When each sample is protected and δ is not below 1 / samples: publishing one sample in
            the clear would keep that.
        """
        if self.protects == "client":
            return 2.0 * noise_multiplier(self.epsilon, self.delta)
        self._check_share(samples, f"a client with {samples} samples")
        return 2.0 / samples * noise_multiplier(self.epsilon, self.delta)

    def check(self, sizes: NDArray[np.int64]) -> None:
        """Raise `InvalidParameterError` if the promise is empty to clients of these sizes [C].

        A δ must be below 1 / C if clients are protected, since publishing one of them in the clear
        would keep that; a client by itself cannot know.
        """
        if self.protects == "client":
            self._check_share(len(sizes), f"one of {len(sizes)} clients")
        else:
            self.noise(int(sizes.max()))

    def _check_share(self, count: int, whom: str) -> None:
        if count * self.delta >= 1:
            raise InvalidParameterError(
                f"A δ of {self.delta:g} promises nothing to {whom}: take one below {1 / count:.1g}."
            )

    def __str__(self) -> str:
        whom = "each sample" if self.protects == "sample" else "each client with all its data"
        return f"profiles are (ε = {self.epsilon:g}, δ = {self.delta:g})-private for {whom}"


def promised(epsilon: float | None, delta: float, protects: str) -> Promise | None:
    """Return what a client's owner promises, or None; a part without an ε is refused.

    Parameters
    ----------
    epsilon, delta, protects
        As in `Promise`; no ε is no promise.

    Examples
    --------
    >>> promised(None, 1e-5, "sample") is None
    True
    """
    if epsilon is not None:
        return Promise(epsilon, delta, protects)
    if protects != PROTECTED[0]:
        raise InvalidParameterError(
            f"protects={protects!r} belongs to an epsilon, and there is none: give both or neither."
        )
    return None


@functools.cache
def noise_multiplier(epsilon: float, delta: float) -> float:
    """Return σ / sensitivity of the Gaussian mechanism that is just (ε, δ)-private.

    Parameters
    ----------
    epsilon, delta : float
        What is promised; see `Promise`.

    Examples
    --------
    >>> round(noise_multiplier(8.0, 1e-5), 4)
    0.6002
    """
    try:
        from dp_accounting.gaussian_mechanism import get_sigma_gaussian
    except ImportError as error:
        raise MissingPackageError("A private profile", "privacy", error) from error
    return float(get_sigma_gaussian(epsilon, delta))


def unpredictable_normal(count: int) -> NDArray[np.float64]:
    """Return standard normal numbers [count] from the operating system's entropy.

    Noise from a generator whose state could be found from what it drew would hide nothing.

    Parameters
    ----------
    count : int
        How many numbers.

    Examples
    --------
    >>> unpredictable_normal(3).shape
    (3,)
    """
    # 52 bits, so that adding a half is exact: a share of 1 would be infinite noise.
    bits = np.frombuffer(os.urandom(8 * count), np.uint64) >> np.uint64(12)
    return scipy.special.ndtri((bits + 0.5) / 2**52)
