"""What a command of a test printed: its text, its JSON, or the one line that it was refused with."""

import json
import os
import pty
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.cluster.harness import FILESTORE, Cluster

ANSWER_S = 60.0


def output(cluster: Cluster, *arguments: str, stdin: bytes = b"", **environment: str) -> str:
    """Standard output of a command that succeeds."""
    done = cluster.filestore(*arguments, stdin=stdin, **environment)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def objects(cluster: Cluster, *arguments: str, **environment: Any) -> list[dict[str, Any]]:
    """What a command that succeeds prints with --json: one object a line."""
    return objects_in(output(cluster, *arguments, "--json", **environment))


def objects_in(text: str) -> list[dict[str, Any]]:
    """One JSON object a line, and nothing else."""
    found = [json.loads(line) for line in text.splitlines()]
    assert all(isinstance(each, dict) for each in found), text
    return found


def refusal(cluster: Cluster, *arguments: str, **environment: Any) -> tuple[int, str]:
    """The exit code of a command that fails, and its only line, without the name of the program."""
    done = cluster.filestore(*arguments, **environment)
    assert done.stdout == b""
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("filestore: ")
    return done.returncode, line.removeprefix("filestore: ")


class Terminal:
    """A command on a terminal of its own. Use as a context manager; it is killed if it still runs then."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], directory: Path) -> None:
        self._master, terminal = pty.openpty()
        self.shown = ""
        self.process = subprocess.Popen(
            [FILESTORE, *arguments],
            env=dict(environment),
            cwd=directory,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
        os.close(terminal)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def wait_for(self, text: str) -> None:
        """Until the terminal shows this."""
        give_up_at = time.monotonic() + ANSWER_S
        while text not in self.shown:
            assert self._read(give_up_at), self.shown

    def type(self, line: str) -> None:
        """Type a line, and Return."""
        os.write(self._master, line.encode() + b"\n")

    def end(self) -> int:
        """Its exit code, when it has ended by itself."""
        give_up_at = time.monotonic() + ANSWER_S
        while self._read(give_up_at):
            pass
        return self.process.wait(timeout=ANSWER_S)

    def _read(self, give_up_at: float) -> bool:
        """Read what comes next. False when nobody has the terminal open any more, or nothing comes."""
        if not select.select([self._master], [], [], max(0.0, give_up_at - time.monotonic()))[0]:
            return False
        try:
            part = os.read(self._master, 4096)
        except OSError:  # EIO: the last one has closed it
            return False
        self.shown += part.decode(errors="replace")
        return bool(part)
