"""The body of a request, as it comes: by aiohttp's parser, or past it into buffers of our own.

Both hold the client to a least pace and tell it to go on (`100 Continue`) only when the first piece is
wanted: it sends nothing to those that refuse it.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Final, Protocol

from aiohttp import hdrs, web

from ca.errors import InvalidRequest
from coordinator.answers import ClientGone
from coordinator.body_ring import BodyRing
from coordinator.rates import BodyPace

PIECE_BYTES_MAX: Final = 1 << 20  # of a streamed body: what one hand-over to a worker thread is worth
RING_BYTES_MIN: Final = 1 << 20  # a shorter body is not worth taking the connection from the parser
Batch = Sequence[bytes | memoryview]  # pieces of a body, one behind the other
_CONTINUED: Final = web.RequestKey("continued", bool)


class Lender(Protocol):
    """A connection whose bytes can go past its parser; `coordinator/connections.py` has it."""

    def lend(self, left_bytes: int) -> BodyRing | None:
        """The next `left_bytes` go into the ring. None while the parser still holds bytes."""

    def take_back(self, *, whole: bool) -> None:
        """The parser reads again: the next request when the body was `whole`, else nothing to its end."""


async def body_chunks(request: web.Request) -> AsyncGenerator[bytes, None]:
    """The body in pieces of up to about 1 MiB, whatever has arrived; time between pieces does not count.

    Raises RequestTimeout below 1 KiB/s for 30 s, InvalidRequest for bad chunks, ClientGone.
    """
    await _say_continue(request)
    request.content.set_read_chunk_size(PIECE_BYTES_MAX // 2)  # aiohttp buffers twice this
    pace = BodyPace(request.protocol.patience.body_stall_s)  # type: ignore[attr-defined]
    while True:
        piece = await _awaited_piece(request, pace)
        if piece == b"":
            return
        if piece is not None:
            yield piece


async def body_batches(request: web.Request) -> AsyncGenerator[Batch, None]:
    """The body as it comes, each time much of what is here, while more goes on arriving into bounded buffers.

    Raises as `body_chunks` does. The pieces are the caller's until it asks for the second batch after them:
    their memory is used again. A long body of known length comes without a copy. Close it (`aclosing`) when
    not all of it is read.
    """
    body_bytes = request.content_length or 0
    if request.content.is_eof() or body_bytes < RING_BYTES_MIN or hdrs.TRANSFER_ENCODING in request.headers:
        async for chunk in body_chunks(request):
            yield [chunk]
        return
    await _say_continue(request)
    pace = BodyPace(request.protocol.patience.body_stall_s)  # type: ignore[attr-defined]
    ring: BodyRing | None = None
    while ring is None:
        taken = _taken_at_once(request)
        if request.content.at_eof():
            if taken:
                yield [taken]
            return
        ring = _lent(request, body_bytes)  # at once: what came in between would never reach the ring
        if ring is None and (piece := taken or await _awaited_piece(request, pace)):
            yield [piece]
    is_whole = False
    try:
        if taken:
            yield [taken]
        async with aclosing(_from_ring(ring, pace)) as batches:
            async for batch in batches:
                yield batch
        is_whole = True
    finally:
        _lender(request).take_back(whole=is_whole)
    request.content.feed_eof()


async def _from_ring(ring: BodyRing, pace: BodyPace) -> AsyncGenerator[Batch, None]:
    now_s = asyncio.get_running_loop().time
    try:
        while not ring.is_drained:
            started_s = now_s()
            views = await ring.next_pieces(pace.left_s)
            pace.arrived(sum(map(len, views)), waited_s=now_s() - started_s)
            if views:
                yield views
    except EOFError as error:
        raise ClientGone("the client went away while it sent its body") from error
    finally:
        ring.close()


def _lent(request: web.Request, body_bytes: int) -> BodyRing | None:
    """A ring for what has not come of the body, all of which was taken; None while the parser keeps some."""
    left_bytes = body_bytes - request.content.total_bytes
    return _lender(request).lend(left_bytes) if left_bytes else None


def _lender(request: web.Request) -> Lender:
    return request.protocol  # type: ignore[return-value]  # it is a connection of ours


async def _say_continue(request: web.Request) -> None:
    wanted = request.headers.get(hdrs.EXPECT, "").lower() == "100-continue" and request.version >= (1, 1)
    if wanted and not request.get(_CONTINUED) and not request.content.is_eof():
        request[_CONTINUED] = True
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer proper has not begun


async def _awaited_piece(request: web.Request, pace: BodyPace) -> bytes | None:
    """What has arrived, after waiting for it at the client's pace: None for nothing yet, b"" at the end."""
    now_s = asyncio.get_running_loop().time
    started_s = now_s()
    piece = await _next_piece(request, pace.left_s)
    pace.arrived(len(piece or b""), waited_s=now_s() - started_s)
    return piece


async def _next_piece(request: web.Request, timeout_s: float) -> bytes | None:
    deadline = asyncio.timeout(timeout_s)
    piece = _taken_at_once(request)
    if piece or request.content.at_eof():
        return piece
    with _told_as_ours():
        try:
            async with deadline:
                return await request.content.readany()
        except TimeoutError:
            if deadline.expired():  # and not the kernel's ETIMEDOUT
                return None
            raise


def _taken_at_once(request: web.Request) -> bytes:
    """All that has arrived, b"" for nothing. What the parser held back follows as soon as there is room."""
    with _told_as_ours():
        return b"".join(iter(request.content.read_nowait, b""))


@contextmanager
def _told_as_ours() -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: aiohttp's reader without a connection
        raise ClientGone("the client went away while it sent its body") from error
    except web.RequestPayloadError as error:
        raise InvalidRequest("The body is not framed as its headers say.") from error
