"""How much of a user's data fits into memory, known before any of it is taken."""

import contextlib
import os
from pathlib import Path

from fedcohort.errors import InvalidInputError

SETTING = "FEDCOHORT_MAX_BYTES"


def check_fits(path: str | Path, needed: int) -> None:
    """Refuse data that unfold to more bytes than this machine has to spare.

    ``FEDCOHORT_MAX_BYTES`` sets another limit, for those who mean it.
    """
    chosen = os.environ.get(SETTING)
    if chosen is not None and not chosen.isdigit():
        raise InvalidInputError(f"{SETTING} is {chosen!r}: it must be a whole number of bytes.")
    limit = int(chosen) if chosen is not None else available_bytes()
    if limit is not None and needed > limit:
        source = f"{SETTING} allows" if chosen is not None else "this machine has to spare"
        raise InvalidInputError(
            f"{path} unfolds to {_in_words(needed)}, more than the {_in_words(limit)} that "
            f"{source}: use a folder of arrays, which need not fit, or raise {SETTING}."
        )


def available_bytes() -> int | None:
    """Return the memory that can be had without swapping, or None where nobody says."""
    limits = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        after = Path("/proc/meminfo").read_text().partition("MemAvailable:")[2]
        limits.append(1024 * int(after.split()[0]))
    # A container may have less than its machine.
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        most = int((group / "memory.max").read_text())
        limits.append(max(0, most - int((group / "memory.current").read_text())))
    if not limits:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def _in_words(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
