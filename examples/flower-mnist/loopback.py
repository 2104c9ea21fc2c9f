"""Start one SuperLink and N SuperNodes on this machine, and run the app in this folder on them.

    python loopback.py --nodes 5                       # plain connections
    python loopback.py --nodes 5 --secure              # TLS, and SuperNodes with keys
    python loopback.py --nodes 5 --secure --hosts      # each on a host of its own (Linux, root)
    python loopback.py --nodes 20 --simulation         # Flower's simulation engine (Ray)
    python loopback.py --nodes 5 --run 'selector="fedavg" num-server-rounds=3'
    python loopback.py --nodes 5 --serve               # only start them, until Ctrl-C

All of them are stopped when the run ends. Everything they write stands in one folder.
"""

import argparse
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent import futures

import certificates
import hosts

LOOPBACK = "127.0.0.1"
CONNECTION = "loopback"
HERE = pathlib.Path(__file__).resolve().parent
START_SECONDS = 60.0


class Federation:
    """A SuperLink and SuperNodes as processes of their own.

    Parameters
    ----------
    folder : Path
        Where keys, certificates, logs and Flower's own files go.
    secure : bool
        Whether to use TLS and to let in only SuperNodes with a registered key.
    network : Hosts, optional
        The hosts to start them on, the SuperLink on the first; all on loopback if not given.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        secure: bool = False,
        network: hosts.Hosts | None = None,
    ) -> None:
        self.folder = folder
        self.secure = secure
        self.port = free_port()
        self.supernodes: list[subprocess.Popen[bytes]] = []
        self._network = network
        self._address = LOOPBACK if network is None else network.address(0)
        self._processes: list[subprocess.Popen[bytes]] = []
        (folder / "home").mkdir(parents=True, exist_ok=True)
        self._bin = pathlib.Path(sys.executable).parent
        self._environment = os.environ | {
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            # The SuperLink starts its helpers by name: they must be those of this environment.
            "PATH": f"{self._bin}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        security = "insecure = true"
        if secure:
            certificates.write_authority(folder, self._address)
            security = f'root-certificates = "{folder / certificates.AUTHORITY}"'
        (folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f'[superlink.{CONNECTION}]\naddress = "{self._address}:{self.port}"\n{security}\n'
        )

    def __enter__(self) -> "Federation":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start_superlink(self, *more: str) -> None:
        """Start the SuperLink and wait until it listens."""
        security = ["--insecure"]
        if self.secure:
            security = [
                f"--ssl-ca-certfile={self.folder / certificates.AUTHORITY}",
                f"--ssl-certfile={self.folder / certificates.SERVER}",
                f"--ssl-keyfile={self.folder / certificates.SERVER_KEY}",
                "--enable-supernode-auth",
            ]
        place = [f"--host={self._address}", f"--port={self.port}"]
        # Flower would install the app's dependencies anew, PyTorch among them.
        lean = ["--disable-runtime-dependency-installation"]
        process = self._start(
            "superlink", "flower-superlink", *security, *place, *lean, *more, host=0
        )
        wait_for_port(self._address, self.port, process)

    def start_supernodes(self, node_configs: Sequence[str]) -> list[subprocess.Popen[bytes]]:
        """Start SuperNodes, each with a key of its own if the federation is secure."""
        numbers = range(len(self.supernodes), len(self.supernodes) + len(node_configs))
        ports = [free_port() for _ in numbers]
        with futures.ThreadPoolExecutor() as pool:
            security = list(pool.map(self._admit, numbers))
        started = [
            self._start(
                f"supernode-{number}",
                "flower-supernode",
                *options,
                f"--superlink={self._address}:{self.port}",
                f"--host={LOOPBACK}",
                f"--port={port}",
                f"--node-config={node_config}",
                host=number + 1,
            )
            for number, port, options, node_config in zip(
                numbers, ports, security, node_configs, strict=True
            )
        ]
        self.supernodes += started
        if self._network is None:
            for port, process in zip(ports, started, strict=True):
                wait_for_port(LOOPBACK, port, process)
        return started

    def _admit(self, number: int) -> list[str]:
        """Return how a SuperNode connects; in a secure federation its key is registered first."""
        if not self.secure:
            return ["--insecure"]
        key = certificates.write_node_key(self.folder, f"supernode-{number}")
        self.flwr("supernode", "register", f"{key}.pub", CONNECTION)
        return [
            f"--root-certificates={self.folder / certificates.AUTHORITY}",
            f"--auth-supernode-private-key={key}",
        ]

    def start_run(
        self, app: pathlib.Path, run_config: str = "", *more: str
    ) -> subprocess.Popen[bytes]:
        """Start ``flwr run`` and return its process; its output goes to ``run.log``."""
        given = ["--run-config", run_config] if run_config else []
        return self._start("run", "flwr", "run", str(app), CONNECTION, "--stream", *given, *more)

    def flwr(self, *arguments: str) -> str:
        """Run a ``flwr`` command to its end and return what it printed."""
        done = subprocess.run(
            [str(self._bin / "flwr"), *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
        )
        if done.returncode:
            raise RuntimeError(f"flwr {' '.join(arguments)} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End a process and its children at once, as a power cut would."""
        end(family([process.pid]), signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """Stop everything that was started here, children included."""
        running = [process for process in self._processes if process.poll() is None]
        everyone = family([process.pid for process in running])
        end([process.pid for process in running], signal.SIGTERM)
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
        end(everyone, signal.SIGKILL)
        for process in running:
            process.wait()

    def _start(
        self, name: str, program: str, *arguments: str, host: int | None = None
    ) -> subprocess.Popen[bytes]:
        there = [] if self._network is None or host is None else self._network.command(host)
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*there, str(self._bin / program), *arguments],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._processes.append(process)
        return process


def family(parents: Sequence[int]) -> list[int]:
    """Return processes and all their descendants; Flower gives some a session of their own."""
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


def end(pids: Sequence[int], how: signal.Signals) -> None:
    """Send a signal to processes, some of which may be gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def wait_for_port(address: str, port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a process listens, or fail with what it ended with."""
    for _ in until(START_SECONDS):
        if process.poll() is not None:
            raise RuntimeError(f"{process.args} ended with code {process.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex((address, port)) == 0:
                return
    raise TimeoutError(f"{process.args} does not listen after {START_SECONDS:g} s")


def until(seconds: float) -> Iterator[None]:
    """Repeat a check for so many seconds, with a short pause in between."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5, help="SuperNodes to start")
    parser.add_argument("--secure", action="store_true", help="TLS and SuperNode authentication")
    parser.add_argument("--hosts", action="store_true", help="a network namespace for each")
    parser.add_argument("--simulation", action="store_true", help="Flower's simulation engine")
    parser.add_argument("--run", default="", metavar="CONFIG", help="the app's run config")
    parser.add_argument("--serve", action="store_true", help="run nothing, wait for Ctrl-C")
    parser.add_argument("--folder", type=pathlib.Path, help="where logs and keys go")
    options = parser.parse_args(arguments)
    folder = (options.folder or pathlib.Path(tempfile.mkdtemp(prefix="fedcohort-"))).resolve()
    with contextlib.ExitStack() as stack:
        network = hosts.Hosts(options.nodes + 1) if options.hosts else None
        if network is not None:
            stack.callback(network.close)
        federation = stack.enter_context(Federation(folder, secure=options.secure, network=network))
        more: list[str] = []
        if options.simulation:
            federation.start_superlink("--simulation")
            size = f"num-supernodes={options.nodes} client-resources-num-cpus=1"
            more = ["--federation-config", size]
        else:
            federation.start_superlink()
            federation.start_supernodes(
                [f"partition-id={i} num-partitions={options.nodes}" for i in range(options.nodes)]
            )
        say(f"The federation is up; logs, keys and settings: {folder}")
        if options.serve:
            say(f"FLWR_HOME={folder / 'home'} flwr run . {CONNECTION} --stream")
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
            return 0
        run = federation.start_run(HERE, options.run, *more)
        return follow(folder / "run.log", run)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def follow(log: pathlib.Path, process: subprocess.Popen[bytes]) -> int:
    """Print a growing log until its process ends."""
    with log.open("r", errors="replace") as file:
        while process.poll() is None:
            sys.stdout.write(file.read())
            sys.stdout.flush()
            time.sleep(0.2)
        sys.stdout.write(file.read())
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
