"""The other side of sd_notify(3) for a test: a datagram socket that a process tells how it is."""

import socket
from pathlib import Path
from types import TracebackType
from typing import Self

DATAGRAM_BYTES_MAX = 4096


class NotifySocket:
    """Use as a context manager. `path` is what goes into NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heard: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def lines(self) -> list[str]:
        """Every assignment that came until now, in order."""
        while True:
            try:
                self.heard += self._socket.recv(DATAGRAM_BYTES_MAX).decode().splitlines()
            except BlockingIOError:
                return self.heard

    def statuses(self) -> list[str]:
        """What was told for `systemctl status` until now."""
        return [line.partition("=")[2] for line in self.lines() if line.startswith("STATUS=")]

    def count(self, line: str) -> int:
        """How often this came until now."""
        return self.lines().count(line)
