"""One file from one address, continuing what an earlier attempt left."""

import http
import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

Progress = Callable[[str, int, int | None], None]
Receive = Callable[[str, Path], None]
"""Brings what is at an address into a file: `receive`, with somebody to tell and a timeout."""

_BLOCK = 1 << 16


class SourceError(Exception):
    """One source did not deliver; its message says why, and the next source is tried."""


def receive(url: str, part: Path, progress: Progress | None, timeout: float) -> None:
    """Bring `part` to its full length, going on where a connection broke off."""
    complete = False
    while not complete:
        before = part.stat().st_size if part.exists() else 0
        try:
            complete = _receive_once(url, part, before, progress, timeout)
        except urllib.error.HTTPError as error:
            raise SourceError(f"HTTP status {error.code}") from None
        except urllib.error.URLError as error:
            reason = getattr(error.reason, "strerror", None) or error.reason
            raise SourceError(str(reason)) from None
        except (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
            raise SourceError(str(error) or type(error).__name__) from None
        if not complete and part.stat().st_size <= before:
            raise SourceError("the connection broke off")


def _receive_once(
    url: str, part: Path, before: int, progress: Progress | None, timeout: float
) -> bool:
    """Add to `part` what one connection delivers; tell whether that was all."""
    request = urllib.request.Request(url, headers={"User-Agent": "fedcohort"})
    if before:
        request.add_header("Range", f"bytes={before}-")
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        # Nothing lies beyond what is here: the checksum will tell whether it is the file.
        if before and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return True
        raise
    with response:
        continued = response.status == http.HTTPStatus.PARTIAL_CONTENT
        if continued and not response.headers.get("Content-Range", "").startswith(
            f"bytes {before}-"
        ):
            raise SourceError("it answered with another range than was asked for")
        done = before if continued else 0
        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdigit() else None
        with part.open("ab" if continued else "wb") as out:
            while block := response.read(_BLOCK):
                out.write(block)
                done += len(block)
                if progress is not None:
                    progress(part.name.removesuffix(".part"), done, total)
    return total is None or done == total
