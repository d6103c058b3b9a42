"""The other workers of this node, and which of them owns an upload.

A node may run as several processes, its workers, that share a client port and a data directory. Only one
worker writes an upload, even if another receives the request. The owner follows from the id of the upload, so
all agree without asking. A request for another worker is passed on over Unix sockets in `DATA/run`, a
directory that only the node's user can enter: a process that can open a socket there owns the files as well.
Worker 0 is the process that was started; the others are its children (`node/workers/supervisor.py`).
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
PAUSE_S = 0.05  # before retrying a worker that did not listen


def owner_of(file_uuid: str, workers: int) -> int:
    """Return the worker, from 0 to `workers` - 1, that owns an upload. Pure: the same in every process."""
    return zlib.crc32(file_uuid.encode()) % workers


class Siblings:
    """The workers of this node, seen from one of them. By default a node of one process.

    `directory` has the sockets; needed with more than one worker.
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
        """Return the numbers of the other workers, ascending."""
        return tuple(number for number in range(self.workers) if number != self.worker)

    @property
    def maker(self) -> str:
        """Return the prefix of this worker's half-written files."""
        return f"w{self.worker}-"

    def is_leftover(self, name: str) -> bool:
        """Return whether a half-written file of this worker is left from before this process.

        Worker 0 starts before the others, so all such files are leftovers for it.
        """
        if self.worker == 0 or name.startswith(self.maker):
            return True
        return is_uuid(name) and self.owner(name) is None  # an upload being discarded

    def owner(self, file_uuid: str) -> int | None:
        """Return the worker that owns an upload; None if it is this one."""
        owner = owner_of(file_uuid, self.workers)
        return None if owner == self.worker else owner

    async def start(self) -> None:
        """Create the directory, and a session for calls to the others. In the event loop; raises OSError."""
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
            except PeerFailed as failure:  # without a connection, nothing of the body was sent
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
