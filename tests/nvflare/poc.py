"""A federation of NVFlare on this machine: one process for the server and one for each site.

It is provisioned by `nvflare poc prepare`, and everything stays on loopback.
"""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

LOOPBACK = "127.0.0.1"
ADMIN = "admin@nvidia.com"
PROJECT = """\
api_version: 3
name: fedcohort
description: a federation on loopback
participants:
- {{name: server, type: server, org: nvidia, default_host: localhost, fed_learn_port: {port}}}
- {{name: admin@nvidia.com, type: admin, org: nvidia, role: project_admin}}
{sites}
builders:
- path: nvflare.lighter.impl.workspace.WorkspaceBuilder
  args: {{template_file: [master_template.yml]}}
- path: nvflare.lighter.impl.static_file.StaticFileBuilder
  args: {{config_folder: config}}
- path: nvflare.lighter.impl.cert.CertBuilder
- path: nvflare.lighter.impl.signature.SignatureBuilder
"""


class Federation:
    """A server and sites as processes of their own."""

    def __init__(self, folder: pathlib.Path, sites: int, python_path: str) -> None:
        self.folder = folder
        self.sites = [f"site-{i + 1}" for i in range(sites)]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._bin = pathlib.Path(sys.executable).parent
        self._environment = os.environ | {
            "HOME": str(folder),
            "NVFLARE_POC_WORKSPACE": str(folder / "poc"),
            "PYTHONPATH": python_path,
            "PATH": f"{self._bin}{os.pathsep}{os.environ.get('PATH', '')}",
            "OMP_NUM_THREADS": "1",
        }
        named = "\n".join(f"- {{name: {site}, type: client, org: nvidia}}" for site in self.sites)
        project = folder / "project.yml"
        project.write_text(PROJECT.format(port=free_port(), sites=named))
        subprocess.run(
            [str(self._bin / "nvflare"), "poc", "prepare", "-i", str(project)],
            env=self._environment,
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
        )
        self.kits = next((folder / "poc").glob("*/prod_00"))

    def __enter__(self) -> "Federation":
        return self

    def __exit__(self, *_: object) -> None:
        end(family([p.pid for p in self._processes.values()]), signal.SIGKILL)
        for process in self._processes.values():
            process.wait()

    def start(self, name: str) -> None:
        """Start the server or a site."""
        kind = "server" if name == "server" else "client"
        given = ["secure_train=true", f"uid={name}", "org=nvidia", "config_folder=config"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [
                    *(sys.executable, "-u", "-m", f"nvflare.private.fed.app.{kind}.{kind}_train"),
                    *("-m", str(self.kits / name), "-s", f"fed_{kind}.json", "--set", *given),
                ],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """End a site and its jobs at once, as a power cut would."""
        process = self._processes[name]
        end(family([process.pid]), signal.SIGKILL)
        process.wait()

    def session(self, seconds: float):
        """Return an administrator's session, once the server and all sites are there."""
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        last: Exception | None = None
        for _ in until(seconds):
            try:
                session = new_secure_session(ADMIN, str(self.kits / ADMIN), timeout=5.0)
                for _ in until(seconds):
                    if len(session.get_system_info().client_info) == len(self.sites):
                        return session
            except Exception as error:
                last = error
        raise TimeoutError(f"the federation is not up after {seconds:g} s: {last!r}")


def family(parents: list[int]) -> list[int]:
    """Return processes and all their descendants."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True)
    children: dict[int, list[int]] = {}
    for line in listed.stdout.splitlines():
        pid, parent = map(int, line.split())
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    left = list(parents)
    while left:
        found.append(left.pop())
        left += children.get(found[-1], [])
    return found


def end(pids: list[int], how: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def until(seconds: float) -> Iterator[None]:
    """Repeat a check for so many seconds, with a short pause in between."""
    end_ = time.monotonic() + seconds
    while time.monotonic() < end_:
        yield
        time.sleep(0.2)
