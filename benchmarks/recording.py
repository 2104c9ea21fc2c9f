"""Results of a benchmark as a file that says where they come from."""

import datetime
import json
import os
import platform
import shlex
import sys
from importlib import metadata
from pathlib import Path

import torch

import fedcohort


def record(path, results):
    """Write results with the command, the machine, the versions and the date."""
    peers = {}
    for package in ("flwr", "ray", "pfl"):
        try:
            peers[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    Path(path).write_text(
        json.dumps(
            {
                "command": shlex.join(["python", *sys.argv]),
                "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "machine": {
                    "processor": _processor(),
                    "cores": len(os.sched_getaffinity(0)),
                    "load": os.getloadavg()[0],
                    "gpu": gpu,
                    "system": platform.platform(),
                },
                "versions": {
                    "fedcohort": fedcohort.__version__,
                    "python": platform.python_version(),
                    "torch": torch.__version__,
                    **peers,
                },
                "results": results,
            },
            indent=2,
        )
        + "\n"
    )
    print(f"\nWritten to {path}")


def _processor():
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()
