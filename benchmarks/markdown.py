"""Tables as the benchmarks print them, and as the pages of the docs show them."""

import datetime
import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path

import fedcohort

_TABLES = {}


def table(title, header, rows, digits=3):
    """Print a table, and keep it for `save`."""
    cells = [
        [str(c) if isinstance(c, str | int) else f"{c:.{digits}f}" for c in row] for row in rows
    ]
    _TABLES[title] = {"head": list(header), "rows": cells}
    print(f"\n{title}\n")
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for row in cells:
        print("| " + " | ".join(row) + " |", flush=True)


def add_save(parser):
    """Add the option that `save` answers."""
    parser.add_argument(
        "--save", metavar="FILE", help="write the tables, as docs/results has them, to FILE"
    )


def save(file):
    """Write all tables of this run with what made them; nothing without a file."""
    if file is None:
        return
    facts = {
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *_arguments()]),
        "machine": _machine(),
        "version": fedcohort.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "tables": _TABLES,
    }
    Path(file).write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _arguments():
    """Return what the command was given, but for where to write."""
    given = list(sys.argv[1:])
    place = given.index("--save")
    return given[:place] + given[place + 2 :]


def _machine():
    packages = [f"Python {platform.python_version()}", f"NumPy {metadata.version('numpy')}"]
    torch = sys.modules.get("torch")
    if torch is not None:
        packages.append(f"PyTorch {torch.__version__}")
        if torch.cuda.is_available():
            packages.insert(0, torch.cuda.get_device_name())
    return ", ".join([f"{len(os.sched_getaffinity(0))} cores {_processor()}", *packages])


def _processor():
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
