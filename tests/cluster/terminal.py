"""A terminal with a command in it: what it asks, and what somebody types."""

import contextlib
import fcntl
import os
import pty
import re
import select
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.processes import wait_until

READ_BYTES = 65536
INTERRUPT = b"\x03"
WAIT_S = 120.0
CONTROL_CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")


class Terminal:
    """Use as a context manager, which ends the command where it has not ended by itself."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self.shown = ""
        self._seen = 0
        self._process = subprocess.Popen(
            command,
            env=dict(environment) | {"TERM": "dumb", "COLUMNS": "200"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            # A password is asked of the terminal that controls the process, whatever its standard input is.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def until(self, text: str) -> None:
        """Wait until it shows that, behind what was waited for before."""
        give_up_at = time.monotonic() + WAIT_S
        while (at := self.shown.find(text, self._seen)) < 0:
            assert self._read(give_up_at), f"it never shows {text!r}: {self.shown}"
        self._seen = at + len(text)

    def type(self, line: str) -> None:
        """A line, and Enter."""
        os.write(self._ours, line.encode() + b"\n")

    def interrupt(self) -> None:
        """Ctrl-C, once the command waits: one that has not yet begun to read would see it at the next key."""
        status = Path(f"/proc/{self._process.pid}/stat")
        wait_until(lambda: status.read_text().rpartition(") ")[2][0] == "S", what="a wait", timeout_s=WAIT_S)
        os.write(self._ours, INTERRUPT)

    def end(self) -> int:
        """Wait until the command has ended; its exit code."""
        give_up_at = time.monotonic() + WAIT_S
        while self._read(give_up_at):
            pass
        return self._process.wait(WAIT_S)

    def _read(self, give_up_at: float) -> bool:
        """Take what it shows next. False when it has ended."""
        ready, _, _ = select.select([self._ours], [], [], max(0.0, give_up_at - time.monotonic()))
        assert ready, f"it shows nothing more: {self.shown}"
        with contextlib.suppress(OSError):  # EIO: nobody has the other end open
            if read := os.read(self._ours, READ_BYTES):
                self.shown += CONTROL_CODES.sub("", read.decode())
                return True
        return False
