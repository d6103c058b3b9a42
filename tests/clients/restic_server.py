"""`filestore serve restic` as a process, a restic that uses it, and bare requests of its protocol."""

import http.client
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.harness import FILESTORE, Answer, Cluster

COMMAND_TIMEOUT_S = 100.0
ADDRESS = re.compile(r"rest:http://127\.0\.0\.1:(\d+)/NAME/")


@contextmanager
def serving(cluster: Cluster, bucket: str) -> Iterator[int]:
    """The port of a server for this bucket. What it says but for its address, nobody wants to read."""
    process = subprocess.Popen(
        [FILESTORE, "serve", "restic", "--bucket", bucket, "--listen", "127.0.0.1:0"],
        env=cluster.command_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell makes what it starts in the background ignore SIGINT, and tests may run there.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = ADDRESS.search(line)
        assert found, line + process.stdout.read()
        yield int(found[1])
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=30)
        assert (process.returncode, rest) == (0, "")
    finally:
        process.kill()
        process.communicate()


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
            "RESTIC_REPOSITORY": f"rest:http://127.0.0.1:{self.port}/{self.repository}/",
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


def ask(
    port: int, method: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """One bare request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body=body, headers=dict(headers or {}))
        response = connection.getresponse()
        received = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, received, response.read())
    finally:
        connection.close()
