"""One WebSocket between two members: a bounded outbox that sends together what is ready together."""

import asyncio
import contextlib
import logging
import types
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Generator
from typing import Any, Protocol

import aiohttp

from ca.errors import FilestoreError, InvalidRequest
from ca.hostnames import authority_of
from metadata.rpc import wire
from metadata.rpc.connector import Connector
from runtime.background import Step, Work
from runtime.lifetime import end_tasks

OUTBOX_FRAMES_MAX = 8192
OUTBOX_BYTES_MAX = 64 << 20
SEND_TIMEOUT_S = 10.0  # a peer that accepts nothing for this long is gone
GOODBYE_S = 0.25  # one round trip, on a busy machine
DIAL_TIMEOUT_S = 2.0
REDIAL_S_MIN = 0.05
REDIAL_S_MAX = 1.0
PING_S = 5.5  # WebSocket pings; a silent peer is noticed within twice this. Over 5 s all share one timer

_BROKEN = (aiohttp.ClientError, FilestoreError, OSError, TimeoutError)  # what a lost peer looks like
_Held = tuple[Coroutine[Any, Any, None], object]  # a sending, and what it waits for
_log = logging.getLogger(__name__)


class OutboxFull(Exception):
    """The peer does not take frames as fast as they come; the caller drops or refuses."""


class _Socket(Protocol):
    async def send_bytes(self, data: bytes) -> None: ...


class Outbox:
    """Encoded frames that wait to be sent. `run` owns the sending until it is cancelled or the socket fails.

    Frames of one turn of the loop are sent together, at its end; `flush` sends at once. Neither wakes a task
    while the socket accepts the data, as it nearly always does.
    """

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()
        self._size_bytes = 0
        self._socket: _Socket | None = None  # while `run` runs
        self._is_due = False  # a flush
        self._held: _Held | None = None  # the message that the socket did not take at once
        self._error: Exception | None = None
        self._stopped = asyncio.Event()  # there is one of the two

    def put(self, frame: wire.Frame) -> None:
        """Queue a frame. Raises OutboxFull, wire.FrameTooLarge."""
        data = wire.encode_frame(frame)
        if len(self._frames) >= OUTBOX_FRAMES_MAX or self._size_bytes + len(data) > OUTBOX_BYTES_MAX:
            raise OutboxFull
        self._frames.append(data)
        self._size_bytes += len(data)
        if self._socket is not None and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def clear(self) -> None:
        """Forget what waits: a new connection starts with nothing old."""
        self._frames.clear()
        self._size_bytes = 0

    def flush(self) -> None:
        """Give the socket what waits, as far as it takes it."""
        self._is_due = False
        while self._frames and self._socket is not None and not self._stopped.is_set():
            try:
                self._held = _begun(self._socket.send_bytes(wire.encode_parcel(self._take())))
            except Exception as error:  # noqa: BLE001 - it is raised where the socket is owned
                self._error = error
            if self._held is not None or self._error is not None:
                self._stopped.set()

    async def run(self, socket: _Socket) -> None:
        """Send for ever. Raises TimeoutError when the peer stalls, and what the socket raises."""
        self._socket = socket
        try:
            while True:
                self.flush()
                await self._stopped.wait()
                if self._error is not None:
                    raise self._error
                held, self._held = self._held, None
                if held is not None:
                    async with asyncio.timeout(SEND_TIMEOUT_S):
                        await _resumed(*held)
                self._stopped.clear()
        finally:
            if self._held is not None:
                self._held[0].close()
            self._socket = self._held = self._error = None
            self._stopped.clear()

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


def _begun(sending: Coroutine[Any, Any, None]) -> _Held | None:
    """Run it as far as it goes without waiting. None if it is done; else it, and what it waits for."""
    try:
        waits_for = sending.send(None)
    except StopIteration:
        return None
    return sending, waits_for


@types.coroutine
def _resumed(sending: Coroutine[Any, Any, None], waits_for: object) -> Generator[Any, Any, None]:
    """The rest of what was begun, in a task: which gets to see what its first part waits for."""
    try:
        yield waits_for
    except BaseException:
        sending.close()
        raise
    yield from sending.__await__()


@contextlib.asynccontextmanager
async def dialling() -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP session for peers; its connections have said their TLS goodbye when it is over."""
    try:
        async with aiohttp.ClientSession(connector=Connector(limit=0)) as session:
            yield session
    finally:
        # aiohttp leaves closing TLS connections to the loop ("Graceful Shutdown" in its manual).
        await asyncio.sleep(GOODBYE_S)


def connection_work(name: str, connect: Step, target: str) -> Work:
    """Keep a connection to `target` up: `connect` dials, and returns, or raises, when it has ended."""
    return Work(
        name,
        connect,
        target=target,
        every_s=REDIAL_S_MIN,
        retry_s_max=REDIAL_S_MAX,
        fails=(aiohttp.ClientError, OSError, InvalidRequest),
        level=logging.DEBUG,
    )


async def end(task: "asyncio.Task[Any]") -> None:
    """Cancel a task of ours and wait for its end; what a broken socket raised in it is no news.

    Our own cancellation meanwhile is not lost, which `suppress(CancelledError): await task` would do.
    """
    await end_tasks([task])
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, _BROKEN):
        _log.error("%s failed", task.get_name(), exc_info=error)


def peer_url(address: str, port: int, path: str) -> str:
    """The https URL of a peer port; IPv6 literals get their brackets."""
    return f"https://{authority_of(address, port)}{path}"
