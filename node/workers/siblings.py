"""The other workers of this node, and which of them an upload belongs to.

A node may run as several processes, its workers, that share a client port and a data directory. An upload is
written by one of them only, whoever takes the request: the owner follows from its id, so all agree without
asking. What reaches another worker is passed on over Unix sockets in `DATA/run`, a directory that only the
node's user can enter: who can open a socket there owns the files as well. Worker 0 is the process that was
started; the others are its children (`node/workers/supervisor.py`).
"""

import asyncio
import os
import socket
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp

from metadata.model.identifiers import is_uuid
from node.peer.client import (
    CONNECTIONS_MAX,
    READ_BUFFER_BYTES,
    STALL_TIMEOUT_S,
    PeerFailed,
    open_request,
)
from node.peer.request_body import Piece
from web.listener import BACKLOG

WORKERS_MAX = 64
PAUSE_S = 0.05  # before a worker that did not listen is tried again


def owner_of(file_uuid: str, workers: int) -> int:
    """Which of the workers 0 .. `workers` - 1 an upload belongs to. Pure: the same in every process."""
    return zlib.crc32(file_uuid.encode()) % workers


class Siblings:
    """The workers of this node as one of them sees them. By default a node of one process.

    `directory` is where the sockets are; needed with more than one.
    """

    def __init__(self, worker: int = 0, workers: int = 1, directory: Path | None = None) -> None:
        assert 0 <= worker < workers <= WORKERS_MAX
        assert directory is not None or workers == 1
        self.worker = worker
        self.workers = workers
        self._path = directory
        self._directory = -1
        self._sessions: dict[int, aiohttp.ClientSession] = {}

    @property
    def others(self) -> tuple[int, ...]:
        """The numbers of the other workers, ascending."""
        return tuple(number for number in range(self.workers) if number != self.worker)

    @property
    def maker(self) -> str:
        """Return the prefix of this worker's half-written files."""
        return f"w{self.worker}-"

    def is_leftover(self, name: str) -> bool:
        """Whether a half-written file is left from before this process: it was this worker's.

        Worker 0 starts before the others, so that all are.
        """
        if self.worker == 0 or name.startswith(self.maker):
            return True
        return is_uuid(name) and self.owner(name) is None  # an upload being discarded

    def owner(self, file_uuid: str) -> int | None:
        """The worker that an upload belongs to; None when it is this one."""
        owner = owner_of(file_uuid, self.workers)
        return None if owner == self.worker else owner

    async def start(self) -> None:
        """Make the directory, and what is needed to call the others. In the event loop; raises OSError."""
        if self._path is None or self.workers == 1:
            return
        self._path.mkdir(mode=0o700, exist_ok=True)
        self._path.chmod(0o700)
        self._directory = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._sessions = {number: _session(self._address(number)) for number in self.others}

    async def close(self) -> None:
        """End all connections to the others."""
        for session in self._sessions.values():
            await session.close()
        self._sessions = {}
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def listening_socket(self) -> socket.socket:
        """Return the socket for other workers; an old one is replaced. Raises OSError."""
        with suppress(FileNotFoundError):
            os.unlink(_name(self.worker), dir_fd=self._directory)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.setblocking(False)
            listening.bind(self._address(self.worker))
            listening.listen(BACKLOG)
        except BaseException:
            listening.close()
            raise
        return listening

    @asynccontextmanager
    async def request(
        self,
        worker: int,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: AsyncIterator[Piece] | None = None,
        answer_timeout_s: float = STALL_TIMEOUT_S,
        patience_s: float = 0.0,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request to another worker, like `PeerClient.request`. Raises PeerFailed.

        A worker that does not listen yet is tried again for `patience_s`.
        """
        name = f"worker {worker}"
        if (session := self._sessions.get(worker)) is None:
            raise PeerFailed(name, "cannot be called from here")
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + patience_s
        while True:
            try:
                response = await open_request(
                    session,
                    name,
                    method,
                    "http://worker",
                    path,
                    headers=headers,
                    body=body,
                    answer_timeout_s=answer_timeout_s,
                )
                break
            except PeerFailed as failure:  # nothing of the body was taken when there was no connection
                if not isinstance(failure.__cause__, aiohttp.ClientConnectorError):
                    raise
                if loop.time() >= ends_at_s:
                    raise
                await asyncio.sleep(PAUSE_S)
        try:
            yield response
        finally:
            response.release() if response.content.at_eof() else response.close()

    def _address(self, worker: int) -> str:
        """Return the address by a descriptor: it has at most 107 bytes, and a path may be longer."""
        return f"/proc/self/fd/{self._directory}/{_name(worker)}"


def _name(worker: int) -> str:
    return f"worker-{worker}.sock"


def _session(address: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.UnixConnector(address, limit=CONNECTIONS_MAX),
        auto_decompress=False,
        read_bufsize=READ_BUFFER_BYTES,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers={"User-Agent", "Accept-Encoding", "Content-Type"},
    )
