"""The page of all settings: ``python -m fedcohort.cli.settings_table > docs/settings.md``."""

import sys

from fedcohort.settings import GROUPS, Setting
from fedcohort.simulation.config import SETTINGS

_TITLES = {
    "data": "Data",
    "training": "Training",
    "selection": "Selection",
    "system": "System: clients that are away, slow or drop out",
    "output": "Output and evaluation",
}
_INTRODUCTION = """\
# Settings

<!-- Made by `python -m fedcohort.cli.settings_table > docs/settings.md`: change the declarations in
src/fedcohort/simulation/config.py instead. -->

What a run can be told. Each is an option of `fedcohort run` (`--batch-size 32`), a key of a
[study file](studies.md) (`batch_size = 32`, or a list of values) and an argument of `RunConfig`.
Two have other names in places: `fedcohort run` takes `--selector` several times, and it and study
files name `seeds`, such as `0..9`, where a run has one `seed`. Both also take a `target`, the
accuracy that reports count rounds to, above 0 and at most 1, and `target_on`: whether it is
accuracy on the `train` samples, which it is by default, or on the `test` samples.

Where a word stands for no value (`full`, `all`, …), Python says `None`. Settings marked ° say how
data are divided over clients: for data that have clients of their own (`mnist-by-writer`,
`shakespeare`, or a file or folder of yours that says so), giving one is refused.
"""


def settings_page() -> str:
    """Return the page as Markdown."""
    parts = [_INTRODUCTION]
    for group in GROUPS:
        rows = [_row(s) for s in SETTINGS.values() if s.group == group]
        parts.append("\n".join([f"\n## {_TITLES[group]}\n", _line(_HEAD), _line(_RULE), *rows, ""]))
    return "".join(parts)


_HEAD = ("setting", "default", "accepted", "what it is")
_RULE = ("---",) * len(_HEAD)


def _row(setting: Setting) -> str:
    default = f"`{setting.to_text(setting.default)}`"
    if setting.option_default != setting.default:
        default += f" (`fedcohort run`: `{setting.to_text(setting.option_default)}`)"
    name = f"`{setting.name}`{'°' if setting.divides else ''}"
    return _line((name, default, setting.accepts, setting.help))


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    sys.stdout.write(settings_page())
