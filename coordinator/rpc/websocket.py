"""One WebSocket between two members: a bounded outbox that sends together what is ready together."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Protocol

import aiohttp

from ca.errors import FilestoreError
from coordinator.rpc import wire
from coordinator.rpc.connector import Connector
from coordinator.rpc.deadlines import Deadlines

OUTBOX_FRAMES_MAX = 8192
OUTBOX_BYTES_MAX = 64 << 20
SEND_TIMEOUT_S = 10.0  # a peer that takes nothing for so long is gone
GOODBYE_S = 0.25  # one round trip, on a busy machine
PING_S = 5.0  # WebSocket pings, so that a silent peer is noticed within twice this

_BROKEN = (aiohttp.ClientError, FilestoreError, OSError, TimeoutError)  # what a lost peer looks like
_log = logging.getLogger(__name__)


class OutboxFull(Exception):
    """The peer does not take frames as fast as they come; the caller drops or refuses."""


class _Socket(Protocol):
    async def send_bytes(self, data: bytes) -> None: ...


class Outbox:
    """Encoded frames that wait to be sent. `run` sends them until it is cancelled or the socket fails."""

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()
        self._size_bytes = 0
        self._ready = asyncio.Event()

    def put(self, frame: wire.Frame) -> None:
        """Queue a frame. Raises OutboxFull, wire.FrameTooLarge."""
        data = wire.encode_frame(frame)
        if len(self._frames) >= OUTBOX_FRAMES_MAX or self._size_bytes + len(data) > OUTBOX_BYTES_MAX:
            raise OutboxFull
        self._frames.append(data)
        self._size_bytes += len(data)
        self._ready.set()

    def clear(self) -> None:
        """Forget what waits: a new connection starts with nothing old."""
        self._frames.clear()
        self._size_bytes = 0

    async def run(self, socket: _Socket) -> None:
        """Send for ever. Raises TimeoutError when the peer stalls, and what the socket raises."""
        async with asyncio.timeout(None) as patience:
            deadlines: Deadlines[None] = Deadlines(lambda _: patience.reschedule(0))
            try:
                while True:
                    await self._ready.wait()
                    self._ready.clear()
                    while self._frames:
                        deadlines.set(None, SEND_TIMEOUT_S)
                        await socket.send_bytes(wire.encode_parcel(self._take()))
                        deadlines.clear(None)
            finally:
                deadlines.close()

    def _take(self) -> list[bytes]:
        """The next frames that travel together."""
        taken = [self._frames.popleft()]
        size_bytes = len(taken[0])
        while self._frames and len(taken) < wire.FRAMES_MAX:
            size_bytes += len(self._frames[0])
            if size_bytes > wire.PARCEL_BYTES_MAX:
                break
            taken.append(self._frames.popleft())
        self._size_bytes -= sum(map(len, taken))
        return taken


@contextlib.asynccontextmanager
async def dialling() -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP session for peers; its connections have said their TLS goodbye when it is over."""
    try:
        async with aiohttp.ClientSession(connector=Connector(limit=0)) as session:
            yield session
    finally:
        # aiohttp leaves closing TLS connections to the loop ("Graceful Shutdown" in its manual).
        await asyncio.sleep(GOODBYE_S)


async def end(task: "asyncio.Task[Any]") -> None:
    """Cancel a task of ours and wait for its end; what a broken socket raised in it is no news.

    Our own cancellation meanwhile is not lost, which `suppress(CancelledError): await task` would do.
    """
    task.cancel()
    await asyncio.wait([task])
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, _BROKEN):
        _log.error("%s failed", task.get_name(), exc_info=error)
