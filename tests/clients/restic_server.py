"""`filestore serve restic` as a process, a restic that uses it, and bare requests of its protocol."""

import base64
import http.client
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.cluster.harness import FILESTORE, Answer, Cluster

COMMAND_TIMEOUT_S = 100.0
LOGIN = "restic:of-the-test"
BASIC = {"Authorization": f"Basic {base64.b64encode(LOGIN.encode()).decode()}"}
ADDRESS = re.compile(r"on http://127\.0\.0\.1:(\d+)/: looking for bucket")


@dataclass(frozen=True)
class Served:
    """A gateway that serves: its process, its port, its first lines, and what it says after them."""

    process: "subprocess.Popen[str]"
    port: int
    introduction: str
    said: IO[str]


@contextmanager
def gateway(
    cluster: Cluster, bucket: str, *options: str, is_quiet: bool = True, **environment: str
) -> Iterator[Served]:
    """Serve this bucket, by default on a free port. `is_quiet`: it says nothing but how it is used."""
    listen = () if "--listen" in options else ("--listen", "127.0.0.1:0")
    process = subprocess.Popen(
        [FILESTORE, "serve", "restic", "--bucket", bucket, *listen, *options],
        env=cluster.command_environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell makes what it starts in the background ignore SIGINT, and tests may run there.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline()]
        while lines[-1] and not re.search(r"restic -r |RESTIC_REPOSITORY", lines[-1]):
            lines.append(process.stdout.readline())
        introduction = "".join(lines)
        assert lines[-1], introduction
        found = ADDRESS.search(introduction)
        yield Served(process, int(found[1]) if found else 0, introduction, process.stdout)
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        assert not (is_quiet and rest), rest
    finally:
        process.kill()
        process.communicate()


def password_file(directory: Path) -> Path:
    """A file with the login of the tests."""
    path = directory / "restic.password"
    path.touch(0o600)
    path.write_text(f"{LOGIN}\n")
    return path


@contextmanager
def serving(cluster: Cluster, bucket: str) -> Iterator[int]:
    """The port of a gateway for this bucket that wants LOGIN."""
    options = ("--password-file", str(password_file(cluster.directory)))
    with gateway(cluster, bucket, *options) as served:
        yield served.port


@dataclass(frozen=True)
class Restic:
    """A restic with a repository and its password; its cache is of the test."""

    program: str
    port: int
    repository: str
    directory: Path
    password: str = "of the test"

    @property
    def environment(self) -> Mapping[str, str]:
        """What it finds."""
        return os.environ | {
            "RESTIC_REPOSITORY": f"rest:http://{LOGIN}@127.0.0.1:{self.port}/{self.repository}/",
            "RESTIC_PASSWORD": self.password,
            "RESTIC_CACHE_DIR": str(self.directory / "cache"),
            "RESTIC_PROGRESS_FPS": "0.1",
        }

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """A run of it."""
        return subprocess.Popen(
            [self.program, *arguments],
            env=dict(self.environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        """The same, to its end: its exit code, and what it says."""
        process = self.start(*arguments)
        try:
            said, _ = process.communicate(timeout=COMMAND_TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
        return process.returncode, said

    def do(self, *arguments: str) -> str:
        """What it says when it succeeds, which it must."""
        code, said = self.run(*arguments)
        assert code == 0, said
        return said


class UnixConnection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        """Called by http.client."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(
    place: int | Path,
    method: str,
    path: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    login: Mapping[str, str] = BASIC,
) -> Answer:
    """One bare request to a port, or to the path of a Unix socket."""
    connection = (
        http.client.HTTPConnection("127.0.0.1", place, timeout=30)
        if isinstance(place, int)
        else UnixConnection(place)
    )
    try:
        connection.request(method, path, body=body, headers={**login, **(headers or {})})
        response = connection.getresponse()
        received = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, received, response.read())
    finally:
        connection.close()
