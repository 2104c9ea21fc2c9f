"""Bytes between server and clients."""

import numpy as np
import numpy.typing as npt

from fedcohort.errors import InvalidInputError


def vector_bytes(values: int, bytes_per_value: int = 4) -> int:
    """Return the bytes of a model or a profile of so many values (float32 unless told)."""
    return values * bytes_per_value


def round_bytes(model_bytes: int, cohort: int, report_bytes: int = 0) -> int:
    """Return the bytes of one round.

    Parameters
    ----------
    model_bytes : int
        Bytes of one model.
    cohort : int
        Clients in the cohort: each receives a model and sends one back.
    report_bytes : int, default 0
        What each of them sends besides, such as its loss.
    """
    return cohort * (2 * model_bytes + report_bytes)


def setup_bytes(profile_bytes: int, clients: int, model_bytes: int = 0) -> int:
    """Return the bytes spent once, before round 1.

    Parameters
    ----------
    profile_bytes : int
        Bytes of one client's profile.
    clients : int
        Clients that send one.
    model_bytes : int, default 0
        Bytes of the initial model, where clients need it to compute their profiles.
    """
    return clients * (profile_bytes + model_bytes)


def bytes_to_target(
    bytes_per_round: int | npt.ArrayLike, setup: int, round_number: int | None
) -> int | None:
    """Return all bytes up to and including the round that reached the target.

    Parameters
    ----------
    bytes_per_round : int or int array, shape [rounds]
        Bytes of every round, or of each.
    setup : int
        Bytes spent once before round 1.
    round_number : int or None
        The round that reached the target, counted from 1 (0: the initial model did); None when
        none did.

    Returns
    -------
    int or None
    """
    if round_number is None:
        return None
    per_round = np.asarray(bytes_per_round, dtype=np.int64)
    if per_round.ndim == 0:
        return setup + int(per_round) * round_number
    if not 0 <= round_number <= len(per_round):
        raise InvalidInputError(
            f"Round {round_number} lies outside the {len(per_round)} rounds that were counted."
        )
    return setup + int(per_round[:round_number].sum())
