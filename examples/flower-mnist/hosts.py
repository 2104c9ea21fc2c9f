"""Hosts on one Linux machine: a network namespace each, joined by a bridge (needs root)."""

import contextlib
import os
import subprocess


class Hosts:
    """A small network of hosts, each with its own address, ports and loopback.

    Host 0 is for the SuperLink, the others are for SuperNodes. This process reaches all of them
    through the bridge, as an operator's machine in the same network would.
    """

    def __init__(self, count: int) -> None:
        self._tag = f"fc{os.getpid() % 100_000}"
        self._names = [f"{self._tag}-{i}" for i in range(count)]
        self._bridge = f"{self._tag}br"
        # The second number of the address is this process's too, so that two networks can coexist.
        self._prefix = f"10.{os.getpid() % 200 + 20}.0"
        try:
            self._build()
        except subprocess.CalledProcessError as error:
            self.close()
            raise RuntimeError(f"no network namespaces here: {error.stderr.strip()}") from error

    def _build(self) -> None:
        ip("link", "add", self._bridge, "type", "bridge")
        ip("address", "add", f"{self._prefix}.254/24", "dev", self._bridge)
        ip("link", "set", self._bridge, "up")
        for i, name in enumerate(self._names):
            outer, inner = f"{self._tag}v{i}", "eth0"
            ip("netns", "add", name)
            ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
            ip("link", "set", outer, "master", self._bridge)
            ip("link", "set", outer, "up")
            ip("-n", name, "address", "add", f"{self.address(i)}/24", "dev", inner)
            ip("-n", name, "link", "set", inner, "up")
            ip("-n", name, "link", "set", "lo", "up")

    def address(self, host: int) -> str:
        """Return a host's address."""
        return f"{self._prefix}.{host + 1}"

    def command(self, host: int) -> list[str]:
        """Return what to put before a command so that it runs on a host."""
        return ["ip", "netns", "exec", self._names[host]]

    def close(self) -> None:
        """Take the network down."""
        for name in self._names:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "delete", name)
        with contextlib.suppress(subprocess.CalledProcessError):
            ip("link", "delete", self._bridge)


def ip(*arguments: str) -> None:
    """Run the ``ip`` command."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
