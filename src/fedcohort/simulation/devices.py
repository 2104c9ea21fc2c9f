"""Where runs are trained."""

import contextlib
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from fedcohort.errors import DeviceMemoryError, InvalidParameterError
from fedcohort.simulation.config import RunConfig


def find_device(name: str) -> torch.device:
    """Return the device called ``auto``, ``cpu`` or ``cuda``."""
    if name not in ("auto", "cpu", "cuda"):
        raise InvalidParameterError(f"The device must be auto, cpu or cuda, not {name!r}.")
    if name == "cuda" and not torch.cuda.is_available():
        raise InvalidParameterError(
            "There is no CUDA device that PyTorch can use here: let the device be cpu."
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        # Matrix products with 10-bit mantissas, as PyTorch's convolutions have by default.
        torch.backends.cuda.matmul.allow_tf32 = True
    return torch.device(name)


def device_for(configs: Iterable[RunConfig], name: str) -> torch.device:
    """Return the device called `name`, and refuse runs that cannot be done on it."""
    device = find_device(name)
    if device.type == "cpu" and any(config.precision == "bfloat16" for config in configs):
        raise InvalidParameterError(
            "Runs in bfloat16 need a GPU, and there is none here: let precision be float32."
        )
    return device


@contextlib.contextmanager
def naming_full_memory() -> Iterator[None]:
    """Say what to do where a GPU has no memory left."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceMemoryError(
            "The GPU's memory is full, perhaps of what others do there: wait until they are done,"
            " then give the same command again, which resumes from what is saved; or let"
            f" the device be cpu. ({str(error).partition('. ')[0]}.)"
        ) from error


def describe_device(device: torch.device) -> str:
    """Say what a device is, for reports."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {_processor()}"


def _processor() -> str:
    """Name the processor; how many of its cores work makes no difference to a result."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
