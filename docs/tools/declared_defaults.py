"""Plain defaults in the API reference, as an extension of Griffe, which reads the sources for it.

Parameters and settings are declared with their checks: ``share = parameter(0.5, Interval(0, 1))``.
A reader who calls the class wants to see ``share = 0.5``.
"""

from typing import Any

import griffe

DECLARE = ("parameter", "setting")


class DeclaredDefaults(griffe.Extension):  # type: ignore[misc, unused-ignore]
    """Put the default in the place of its declaration."""

    def on_attribute_instance(self, *, attr: Any, **_: Any) -> None:
        """Look at an attribute of a class or module."""
        value = attr.value
        if isinstance(value, griffe.ExprCall) and str(value.function) in DECLARE:
            attr.value = value.arguments[0]
