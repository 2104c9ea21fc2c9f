"""A web server and package registries on this machine, for tests of downloads."""

import http.server
import io
import re
import tarfile
import threading
from pathlib import Path


class Mirror:
    """A web server on loopback whose files, and manners, a test decides."""

    def __init__(self, files, *, ranges=True, break_after=None):
        self.requests = []
        mirror = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.removeprefix("/")
                asked = self.headers.get("Range")
                mirror.requests.append((name, asked))
                if name not in files:
                    self.send_error(404)
                    return
                content, start = files[name], 0
                if asked and ranges:
                    start = int(re.fullmatch(r"bytes=(\d+)-", asked).group(1))
                    if start >= len(content):
                        self.send_response(416)
                        self.send_header("Content-Range", f"bytes */{len(content)}")
                        self.end_headers()
                        return
                    self.send_response(206)
                    last = len(content) - 1
                    self.send_header("Content-Range", f"bytes {start}-{last}/{len(content)}")
                else:
                    self.send_response(200)
                body = content[start:]
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[:break_after])

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, args=(0.01,)).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def put(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def program(data_home: Path, name: str, script: str) -> None:
    path = put(data_home / "bin", {name: f"#!/bin/sh\n{script}\n".encode()}) / name
    path.chmod(0o755)


def npm_archive(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path
