"""Whether a process on this machine still lives, though its number may have been given anew."""

import os
import socket
from pathlib import Path


def host() -> str:
    """Return this machine's name."""
    return socket.gethostname()


def started(pid: int) -> int:
    """Return when a process began, in ticks since the machine's start; 0 where nobody says."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # The name in parentheses may hold spaces; the start is the 20th field after it.
    return int(text.rpartition(")")[2].split()[19])


def lives(pid: int, since: int) -> bool:
    """Tell whether the process with this number, begun then, lives on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return started(pid) == since
