"""Which processor this is: what is measured or compiled for one is wrong for another."""

import functools
import platform
from pathlib import Path

_TELLING = ("vendor_id", "model name", "cpu family", "model\t", "stepping", "flags", "Features")


@functools.cache
def processor() -> str:
    """Describe the processor and what it can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return " ".join(sorted({line for line in lines if line.startswith(_TELLING)}))
