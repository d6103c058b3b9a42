"""One WebSocket between two members: a bounded outbox that sends together what is ready together."""

import asyncio
from collections import deque
from typing import Protocol

from coordinator import wire

OUTBOX_FRAMES_MAX = 8192
PARCEL_FRAMES_MAX = 512  # keeps one message well under wire.MESSAGE_BYTES_MAX for calls and answers
SEND_TIMEOUT_S = 10.0  # a peer that takes nothing for so long is gone
PING_S = 5.0  # WebSocket pings, so that a silent peer is noticed within twice this


class OutboxFull(Exception):
    """The peer does not take frames as fast as they come; the caller drops or refuses."""


class _Socket(Protocol):
    async def send_bytes(self, data: bytes) -> None: ...


class Outbox:
    """Frames that wait to be sent. `run` sends them until it is cancelled or the socket fails."""

    def __init__(self, *, frames_max: int = OUTBOX_FRAMES_MAX) -> None:
        self._frames: deque[wire.Frame] = deque()
        self._frames_max = frames_max
        self._ready = asyncio.Event()

    def put(self, frame: wire.Frame) -> None:
        """Queue a frame. Raises OutboxFull."""
        if len(self._frames) >= self._frames_max:
            raise OutboxFull
        self._frames.append(frame)
        self._ready.set()

    def clear(self) -> None:
        """Forget what waits: a new connection starts with nothing old."""
        self._frames.clear()

    async def run(self, socket: _Socket) -> None:
        """Send for ever. Raises TimeoutError when the peer stalls, and what the socket raises."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            while self._frames:
                batch = [self._frames.popleft() for _ in range(min(len(self._frames), PARCEL_FRAMES_MAX))]
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await socket.send_bytes(wire.encode(batch))
