"""Where runs are trained."""

import contextlib
import platform
from collections.abc import Iterable
from pathlib import Path

import torch

from fedcohort.errors import InvalidParameterError
from fedcohort.simulation.config import RunConfig


def find_device(name: str) -> torch.device:
    """Return the device called ``auto``, ``cpu`` or ``cuda``."""
    if name not in ("auto", "cpu", "cuda"):
        raise InvalidParameterError(f"The device must be auto, cpu or cuda, not {name!r}.")
    if name == "cuda" and not torch.cuda.is_available():
        raise InvalidParameterError(
            "There is no CUDA device that PyTorch can use here: take --device cpu."
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
            "Runs in bfloat16 need a GPU: take --precision float32 on this machine."
        )
    return device


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
