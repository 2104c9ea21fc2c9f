"""From profiles to the similarity of FL-DP³S.

With S⁰ the matrix of distances between profiles, S = 1 − S⁰ / max S⁰ and the kernel is L = SᵀS
(Zhang et al., "DPP-based Client Selection for Federated Learning with Non-IID Data", ICASSP 2023).
The smallest distance is 0, since the diagonal belongs to
the matrix, so nothing else is subtracted. S does not change when all profiles are shifted or
scaled together, which is what allows `Frame` to centre and scale them before anything is squared.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.errors import InvalidKernelError, InvalidProfilesError

Floats = NDArray[np.float64]

# Numbers of a long array that are worked on at a time (4 MiB, to stay in the cache).
_BLOCK_NUMBERS = 2**19

# ‖x−z‖² = ‖x‖² + ‖z‖² − 2xᵀz cancels where x and z are close. Below this share of ‖x‖² + ‖z‖²
# the distance is computed again from the difference, so that its error stays near the rounding
# of the profiles themselves.
_EXACT_SHARE = 1e-2


def as_profiles(profiles: ArrayLike | Sequence[ArrayLike]) -> NDArray[Any]:
    """Return profiles as a finite floating-point array, or say which client's is wrong.

    Parameters
    ----------
    profiles : array_like of shape [C, Q]
        One row per client. float32 and float64 arrays are returned as they are, not copied.

    Raises
    ------
    InvalidProfilesError
        When there are no profiles, lengths differ, or a value is not a finite real number.
    """
    array = profiles if isinstance(profiles, np.ndarray) else _stack(profiles)
    if array.ndim != 2:
        raise InvalidProfilesError(
            f"Profiles must be an array [clients, features], not one of shape {array.shape}."
        )
    if 0 in array.shape:
        raise InvalidProfilesError(
            f"Profiles of shape {array.shape} are empty: give at least one client and one feature."
        )
    if array.dtype.kind not in "fiu":
        raise InvalidProfilesError(f"Profiles must be real numbers, not {array.dtype}.")
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float64)
    for rows in row_blocks(*array.shape):
        block = array[rows]
        # A sum of squares could overflow; minimum and maximum carry NaN and infinity as they are.
        if not (np.isfinite(block.max()) and np.isfinite(block.min())):
            client = rows.start + int(np.flatnonzero(~np.isfinite(block).all(axis=1))[0])
            raise InvalidProfilesError(
                f"The profile of client {client} holds a value that is not finite."
            )
    return array


def _stack(profiles: Any) -> NDArray[Any]:
    rows = [np.asarray(row) for row in profiles]
    for client, row in enumerate(rows):
        if row.ndim != 1:
            raise InvalidProfilesError(
                f"The profile of client {client} must be a vector, not of shape {row.shape}."
            )
        if row.shape != rows[0].shape:
            raise InvalidProfilesError(
                f"The profile of client {client} has {row.size} numbers, "
                f"but that of client 0 has {rows[0].size}."
            )
    return np.stack(rows) if rows else np.empty((0, 0))


def row_blocks(count: int, width: int, multiple: int = 1) -> Iterator[slice]:
    """Yield slices of `count` rows of `width` numbers that are small enough to work on.

    All but the last hold a multiple of `multiple` rows.
    """
    step = max(1, _BLOCK_NUMBERS // (width * multiple)) * multiple
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


@dataclasses.dataclass(frozen=True, eq=False)
class Frame:
    """The shift and scale in which profiles are safe to square.

    Parameters
    ----------
    unit : float
        A power of two, so that multiplying by it loses nothing.
    centre : ndarray of shape [Q]
        What is subtracted after multiplying.
    """

    unit: float
    centre: Floats

    @classmethod
    def around(cls, profiles: NDArray[Any], sample: NDArray[Any]) -> Frame:
        """Return the frame in which all of `profiles` lie near ±1 around the mean of `sample`."""
        extent = max(
            max(float(profiles[rows].max()), -float(profiles[rows].min()))
            for rows in row_blocks(*profiles.shape)
        )
        # Beyond ±1000 the power itself would overflow, and the squares no longer can.
        exponent = min(max(math.frexp(extent)[1], -1000), 1000)
        unit = math.ldexp(1.0, -exponent)
        return cls(unit, (sample.astype(np.float64) * unit).mean(axis=0))

    def __call__(self, profiles: NDArray[Any]) -> Floats:
        """Return `profiles` [m, Q] centred and scaled, in float64."""
        framed = profiles.astype(np.float64)
        framed *= self.unit
        framed -= self.centre
        return framed


def distances(x: Floats, z: Floats, exact_share: float = _EXACT_SHARE) -> Floats:
    """Return the distances [m, n] between framed rows x [m, Q] and z [n, Q].

    Pairs with ‖x−z‖² up to `exact_share` of ‖x‖² + ‖z‖² are computed from their difference.
    """
    result: Floats = x @ z.T
    result *= -2.0
    norms = np.einsum("ij,ij->i", x, x)[:, None] + np.einsum("ij,ij->i", z, z)[None, :]
    result += norms
    norms *= exact_share
    close = result <= norms
    np.sqrt(np.maximum(result, 0.0, out=result), out=result)
    pairs = np.flatnonzero(close)
    for part in row_blocks(pairs.size, x.shape[1]):
        i, j = np.divmod(pairs[part], len(z))
        difference = x[i]
        difference -= z[j]
        result[i, j] = np.sqrt(np.einsum("ij,ij->i", difference, difference))
    return result


def similarity(profiles: ArrayLike | Sequence[ArrayLike]) -> Floats:
    """Return S = 1 − S⁰ / max S⁰ of the paper.

    Parameters
    ----------
    profiles : array_like of shape [C, Q]

    Returns
    -------
    ndarray of shape [C, C]
        Symmetric, ones on the diagonal, values in [0, 1]. Where all profiles are equal the paper
        divides 0 by 0; here S is all ones.

    Examples
    --------
    >>> similarity([[0.0], [1.0], [4.0]])
    array([[1.  , 0.75, 0.  ],
           [0.75, 1.  , 0.25],
           [0.  , 0.25, 1.  ]])
    """
    array = as_profiles(profiles)
    framed = Frame.around(array, array)(array)
    result = distances(framed, framed)
    # The product of BLAS is symmetric only up to rounding.
    result += result.T.copy()
    largest = float(result.max())
    if largest > 0:
        result /= -largest
    result += 1.0
    return result


def as_kernel(kernel: ArrayLike) -> Floats:
    """Return a kernel as a symmetric finite float64 array [C, C], or say what is wrong with it."""
    try:
        array = np.asarray(kernel)
    except ValueError as error:
        raise InvalidKernelError(f"A kernel must be a square matrix: {error}.") from error
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.size == 0:
        raise InvalidKernelError(
            f"A kernel must be a square matrix, not an array of shape {array.shape}."
        )
    if array.dtype.kind not in "fiu":
        raise InvalidKernelError(f"A kernel must hold real numbers, not {array.dtype}.")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        row, column = np.argwhere(~np.isfinite(array))[0]
        raise InvalidKernelError(f"The kernel's entry ({row}, {column}) is not finite.")
    asymmetry = np.abs(array - array.T)
    if asymmetry.max() > 1e-8 * np.abs(array).max():
        row, column = np.unravel_index(int(asymmetry.argmax()), array.shape)
        raise InvalidKernelError(
            f"The kernel is not symmetric: entries ({row}, {column}) and ({column}, {row}) differ."
        )
    result: Floats = (array + array.T) / 2
    return result
