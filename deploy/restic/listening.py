"""The address of the gateway: ADDRESS:PORT, or a Unix socket that only its user can connect to."""

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ca.errors import Conflict, InvalidRequest

METAVAR: Final = "ADDRESS:PORT|unix:PATH"
_PLACE: Final = re.compile(r"(\[[^\[\]]+\]|[^:\[\]]+):([0-9]{1,5})", re.ASCII)
_OTHERS: Final = 0o177  # the mask of a file that its owner alone may use


@dataclass(frozen=True, slots=True)
class ListenPlace:
    """A host and a port, or the path of a socket."""

    host: str = ""
    port: int = 0
    path: Path | None = None

    @property
    def own_host(self) -> str | None:
        """The host that requests name; None for a Unix socket."""
        return self.host if self.path is None else None

    @property
    def url(self) -> str:
        """Return the URL that restic needs before the name of a repository, after `rest:`."""
        if self.path is not None:
            return f"http+unix://{self.path.absolute()}:/"
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/"

    def bound(self) -> tuple[socket.socket, "ListenPlace"]:
        """Return a socket that does not listen yet, and the place with the port that it has.

        Raises InvalidRequest if it cannot be had, Conflict if another server listens on the path.
        """
        try:
            return self._bound()
        except OSError as error:
            where = self.path or f"{self.host}:{self.port}"
            raise InvalidRequest(f"--listen: {where}: {error.strerror or error}.") from error

    def _bound(self) -> tuple[socket.socket, "ListenPlace"]:
        if self.path is not None:
            return _unix_socket(self.path), self
        family, kind, number, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[
            0
        ]
        made = socket.socket(family, kind, number)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
        except OSError:
            made.close()
            raise
        return made, ListenPlace(self.host, made.getsockname()[1])


def place_of(text: str) -> ListenPlace:
    """Parse the value of --listen. Raises InvalidRequest."""
    if text.startswith("unix:") and len(text) > len("unix:"):
        return ListenPlace(path=Path(text.removeprefix("unix:")))
    found = _PLACE.fullmatch(text)
    if found is None or int(found[2]) > 65535:
        raise InvalidRequest(f"--listen: {text!r} is not {METAVAR}.")
    return ListenPlace(found[1].strip("[]"), int(found[2]))


def _unix_socket(path: Path) -> socket.socket:
    """A socket of mode 0600 from its first moment on. One that a dead server left behind is replaced."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(_OTHERS)
    try:
        if path.is_socket():
            _remove_dead(path)
        made.bind(str(path))
        made.listen()  # at once: what does not listen yet looks dead to another server that starts
    except BaseException:
        made.close()
        raise
    finally:
        os.umask(before)
    return made


def _remove_dead(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise Conflict(f"Another server is listening on {path}.")
