"""Colours that stay apart for colour-blind readers, on light and on dark ground.

Selectors: after Okabe and Ito, "Color Universal Design" (2008). Classes: after P. Tol, "Colour
Schemes" (2021), muted; points carry their class as text too, since ten hues are too many.
"""

from collections.abc import Sequence

BASELINE = ("#6b7280", "#a3abb8")
SELECTORS = (
    ("#0072b2", "#4db3f0"),
    ("#d55e00", "#ff9248"),
    ("#008f68", "#2fcf9f"),
    ("#b8578f", "#ea9cc9"),
    ("#b47b00", "#f2c14e"),
    ("#6a51a3", "#b39ddb"),
    ("#7a5230", "#d0a37c"),
)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
CLASSES = (
    ("#332288", "#8f7cf0"),
    ("#56a9d6", "#88ccee"),
    ("#1f9484", "#44bba9"),
    ("#117733", "#4cbf72"),
    ("#8a8a1f", "#c9c95a"),
    ("#c9a227", "#e6d37e"),
    ("#cc5566", "#ee8592"),
    ("#882255", "#d9679f"),
    ("#aa4499", "#d98acb"),
    ("#777777", "#c4c4c4"),
)


def selector_styles(labels: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the colour of each of a report's labels on light and on dark ground, and its dash.

    Plain fedavg is the grey, dotted one that others stand out from.
    """
    styles: dict[str, dict[str, str]] = {}
    others = [label for label in dict.fromkeys(labels) if label != "fedavg"]
    for i, label in enumerate(others):
        light, dark = SELECTORS[i % len(SELECTORS)]
        dash = DASHES[(i // len(SELECTORS)) % len(DASHES)]
        styles[label] = {"light": light, "dark": dark, "dash": dash}
    if "fedavg" in labels:
        styles["fedavg"] = {"light": BASELINE[0], "dark": BASELINE[1], "dash": "dot"}
    return styles
