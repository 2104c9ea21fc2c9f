"""What a client does to its profile before it leaves: clip its norm, add Gaussian noise."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.errors import InvalidParameterError
from fedcohort.privacy import unpredictable_normal


def check_protection(clip: float | None, sigma: float) -> None:
    """Raise `InvalidParameterError` unless the clipping norm and the noise make sense."""
    if clip is not None and not (np.isfinite(clip) and clip > 0):
        raise InvalidParameterError(f"clip must be a number above 0, or None, not {clip!r}.")
    if not (np.isfinite(sigma) and sigma >= 0):
        raise InvalidParameterError(f"sigma must be a number of at least 0, not {sigma!r}.")
    if sigma and clip is None:
        raise InvalidParameterError(
            "Noise hides a client only if its profile is bounded: give clip together with sigma."
        )


def protected(
    profile: ArrayLike,
    *,
    clip: float | None = None,
    sigma: float = 0.0,
    rng: np.random.Generator | None = None,
) -> NDArray[np.float32]:
    """Return a profile that may leave the client.

    Parameters
    ----------
    profile : array_like [Q]
        What the client measured.
    clip : float, optional
        Largest Euclidean norm; longer profiles are scaled down to it.
    sigma : float
        Standard deviation of the Gaussian noise that is added to every number.
    rng : numpy.random.Generator, optional
        Source of the noise; by default the operating system's entropy, since noise that somebody
        can draw again hides nothing.

    Returns
    -------
    float32 [Q]
        The clipped and noised profile.

    Examples
    --------
    >>> protected([3.0, 4.0], clip=1.0)
    array([0.6, 0.8], dtype=float32)
    """
    check_protection(clip, sigma)
    vector = np.asarray(profile, np.float64)
    if clip is not None:
        norm = float(np.linalg.norm(vector))
        vector = vector * min(1.0, clip / norm) if norm > 0 else vector
    if sigma:
        normal = unpredictable_normal(vector.size) if rng is None else rng.normal(size=vector.size)
        vector = vector + sigma * normal.reshape(vector.shape)
    return vector.astype(np.float32)
