"""Partitions in words, as the command line and configurations have them."""

import dataclasses
import math
from typing import Literal

from fedcohort.errors import InvalidParameterError
from fedcohort.federation.partitions.dirichlet import check_alpha
from fedcohort.federation.partitions.shards import check_shards
from fedcohort.federation.partitions.skew import Skew, check_skew

PartitionKind = Literal["skew", "iid", "dirichlet", "shards", "natural"]


@dataclasses.dataclass(frozen=True)
class PartitionSpec:
    """A partition in words: its kind and the number that goes with it.

    Parameters
    ----------
    kind : {"skew", "iid", "dirichlet", "shards", "natural"}
        ``natural`` means that the data set itself says who holds what.
    value : float or "H" or None
        ξ or ``"H"`` for ``skew``, α for ``dirichlet``, shards a client for ``shards``.

    Examples
    --------
    >>> parse_skew("dirichlet:0.1")
    PartitionSpec(kind='dirichlet', value=0.1)
    """

    kind: PartitionKind
    value: Skew | None = None

    def __str__(self) -> str:
        if self.kind == "skew":
            return str(self.value) if self.value == "H" else f"{self.value:g}"
        return self.kind if self.value is None else f"{self.kind}:{self.value:g}"


def parse_skew(text: str) -> PartitionSpec:
    """Read a partition from text.

    Parameters
    ----------
    text : str
        ``"0.8"`` (ξ, any number in [0, 1]), ``"H"``, ``"iid"``, ``"dirichlet:0.1"``, ``"shards:2"``
        or ``"natural"``; upper and lower case are the same.

    Raises
    ------
    InvalidParameterError
        For any other text.

    Examples
    --------
    >>> parse_skew("0.8").value, parse_skew("shards:2").kind
    (0.8, 'shards')
    """
    word, colon, argument = text.strip().lower().partition(":")
    if word == "h" and not colon:
        return PartitionSpec("skew", "H")
    if word in ("iid", "natural") and not colon:
        return PartitionSpec("iid" if word == "iid" else "natural")
    if word == "dirichlet":
        return PartitionSpec("dirichlet", check_alpha(_number(argument, text)))
    if word == "shards":
        return PartitionSpec("shards", check_shards(_number(argument, text)))
    return PartitionSpec("skew", check_skew(_number(word + colon + argument, text)))


def _number(argument: str, text: str) -> float:
    try:
        value = float(argument)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidParameterError(
            "skew must lie in [0, 1] or be H, iid, dirichlet:ALPHA, shards:COUNT or natural, "
            f"not {text!r}."
        )
    return value
