"""Names with parameters, as they are written on the command line and in study files.

========================================  ====================================
``dp3s``                                  a name
``dp3s:rank=128,weights=unbiased``        a name and parameters
``package.module:Rule``                   something of your own, by reference
``my_selector.py:MySelector:beta=0.5``    the same from a file, with parameters
``only(match; 3; ward-*)``                a wrapper, what it wraps, and for whom
========================================  ====================================
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedcohort.errors import InvalidParameterError

# The colon that parameters follow: a key and "=" come after it, or nothing at all.
_PARAMETERS = re.compile(r":(?=[^:=]*=|\s*$)")
# A wrapper and what stands in its brackets.
_WRAPPED = re.compile(r"\s*([a-z]+)\((.*)\)\s*", re.DOTALL)
# Whole numbers as they are written one way only.
_ID = re.compile(r"0|[1-9][0-9]{0,18}")
_WORDS = {"none": None, "true": True, "false": False}


def parse_spec(text: str) -> tuple[str, dict[str, Any]]:
    """Split a spec into what it names and the parameters.

    Numbers, ``none``, ``true`` and ``false`` become values; every other value is a text.

    Examples
    --------
    >>> parse_spec("avgm:momentum=0.9,lr=1")
    ('avgm', {'momentum': 0.9, 'lr': 1})
    """
    name, *rest = _PARAMETERS.split(text, maxsplit=1)
    parameters: dict[str, Any] = {}
    for item in filter(None, "".join(rest).split(",")):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise InvalidParameterError(
                f"{text!r} has the parameter {key!r} without a value: write name:key=value."
            )
        if key in parameters:
            raise InvalidParameterError(f"{text!r} gives {key!r} twice: leave one of them out.")
        parameters[key] = _value(value)
    return name.strip(), parameters


def parse_wrapped(text: str) -> tuple[str, str, tuple[int | str, ...]] | None:
    """Split a spec of a wrapper into its name, the spec inside and for whom it is, or return None.

    Whom it is for are ids if they are whole numbers, and texts otherwise. Where brackets do not
    match it is no spec of a wrapper.

    Examples
    --------
    >>> parse_wrapped("always(only(match; tag:gpu); 3; ward-*)")
    ('always', 'only(match; tag:gpu)', (3, 'ward-*'))
    """
    found = _WRAPPED.fullmatch(text)
    if found is None:
        return None
    parts, depth = [""], 0
    for letter in found[2]:
        depth += (letter == "(") - (letter == ")")
        if depth < 0:
            break
        if letter == ";" and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    if depth:
        return None
    inner, *who = (part.strip() for part in parts)
    return found[1], inner, tuple(int(one) if _ID.fullmatch(one) else one for one in who if one)


def format_wrapped(name: str, inner: str, who: Sequence[int | str]) -> str:
    """Return the spec that `parse_wrapped` splits into these.

    Examples
    --------
    >>> format_wrapped("only", "match", [3, "ward-*"])
    'only(match; 3; ward-*)'
    """
    spec = f"{name}({'; '.join([inner, *map(str, who)])})"
    if parse_wrapped(spec) != (name, inner, tuple(who)):
        raise InvalidParameterError(
            f"Whom {name!r} is for ({list(who)!r}) cannot be written down: use ids, and names that"
            " are no numbers and have no brackets, semicolons or spaces around them."
        )
    return spec


def meaning(text: str) -> str:
    """Return what specs have in common that mean the same, however they are written.

    Examples
    --------
    >>> meaning("avgm: lr=1,momentum=.9") == meaning("avgm:momentum=0.9,lr=1")
    True
    >>> meaning("match:") == meaning("match")
    True
    """
    if (wrapped := parse_wrapped(text)) is not None:
        return f"{wrapped[0]}({meaning(wrapped[1])}; {wrapped[2]})"
    name, parameters = parse_spec(text)
    return f"{name}:{sorted(parameters.items())}"


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def format_spec(name: str, parameters: Mapping[str, Any]) -> str:
    """Return the spec that `parse_spec` splits into these.

    Examples
    --------
    >>> format_spec("avgm", {"momentum": 0.9, "lr": 1})
    'avgm:momentum=0.9,lr=1'
    """
    written = {key: str(value) for key, value in parameters.items()}
    spec = f"{name}:{','.join(f'{k}={v}' for k, v in written.items())}" if written else name
    if parse_spec(spec) != (name, dict(parameters)):
        raise InvalidParameterError(
            f"The parameters {dict(parameters)!r} of {name!r} cannot be written down: use numbers,"
            " texts, True, False and None."
        )
    return spec
