"""The body of a request, as it comes: by aiohttp's parser, or past it into buffers of our own.

Both require a least pace of the client, and send it `100 Continue` only when the first piece is wanted: it
sends no body to handlers that refuse it.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Final, Protocol

from aiohttp import hdrs, web

from ca.errors import InvalidRequest
from runtime.time_limits import client_sends
from web.buffer_ring import BodyRing
from web.chunked import Chunks, Framing, KnownLength, MalformedBody
from web.rate_limits import BodyPace
from web.responses import ClientGone

PIECE_BYTES_MAX: Final = 1 << 20  # of a streamed body: what one hand-over to a worker thread is worth
RING_BYTES_MIN: Final = 1 << 20  # a shorter body is not worth taking the connection from the parser
Batch = Sequence[bytes | memoryview]  # pieces of a body, one behind the other
_CONTINUED: Final = web.RequestKey("continued", bool)


class Lender(Protocol):
    """A connection whose bytes can go past its parser.

    A Protocol, as `web.connection`, which has the one class of this kind, imports this module.
    """

    @property
    def is_at_body(self) -> bool:
        """Whether no byte behind the head of the last request has come to the parser yet."""

    def lend(self, framing: Framing) -> BodyRing | None:
        """The body that comes next goes into the ring; None while the parser still has bytes of it."""

    def take_back(self, *, whole: bool, rest: bytes) -> None:
        """Let the parser read again, after a body that was `whole` or not.

        After a whole body the parser reads the next request, which begins with `rest`; after any other it
        reads nothing until the connection ends.
        """


def body_length(request: web.Request) -> int | None:
    """Return the number of bytes of the body; None for chunked ones."""
    return None if hdrs.TRANSFER_ENCODING in request.headers else request.content_length or 0


async def body_chunks(request: web.Request, pace: BodyPace | None = None) -> AsyncGenerator[bytes, None]:
    """Yield the body in pieces of up to about 1 MiB. Time between pieces does not count.

    Raises RequestTimeout below 1 KiB/s for 30 s, InvalidRequest for bad chunks, ClientGone.
    """
    await _say_continue(request)
    request.content.set_read_chunk_size(PIECE_BYTES_MAX // 2)  # aiohttp buffers twice this
    pace = pace or BodyPace(request.protocol.patience.body_stall_s)  # type: ignore[attr-defined]
    while True:
        piece = await _awaited_piece(request, pace)
        if piece == b"":
            return
        if piece is not None:
            yield piece


async def body_batches(
    request: web.Request, pace: BodyPace | None = None, *, from_peer: bool = False
) -> AsyncGenerator[Batch, None]:
    """Yield the body in large batches, while more arrives into bounded buffers.

    Raises as `body_chunks` does. The pieces belong to the caller until it asks for the second batch after
    them: their memory is reused. A long body arrives without a copy if its length is known, or if it comes in
    chunks `from_peer`, who waited for the head of the response: many tiny chunks would cost the loop ten
    times what they cost the parser. Close the generator (`aclosing`) if the body is not read to its end.
    """
    pace = pace or BodyPace(request.protocol.patience.body_stall_s)  # type: ignore[attr-defined]
    ring: BodyRing | None = None
    taken = b""
    if hdrs.TRANSFER_ENCODING in request.headers:
        if from_peer and _lender(request).is_at_body:
            ring = _lender(request).lend(Chunks())
    elif (request.content_length or 0) >= RING_BYTES_MIN:
        await _say_continue(request)
        while ring is None and not request.content.at_eof():
            taken = _taken_at_once(request)
            ring = _lent(request)  # at once: what came in between would never reach the ring
            if ring is None and (piece := taken or await _awaited_piece(request, pace)):
                yield [piece]
    if ring is None:
        async with aclosing(body_chunks(request, pace)) as chunks:
            async for chunk in chunks:
                yield [chunk]
        return
    is_whole = False
    try:
        await _say_continue(request)
        if taken:
            yield [taken]
        async with aclosing(_from_ring(ring, pace)) as batches:
            async for batch in batches:
                yield batch
        is_whole = True
    finally:
        ring.close()
        _lender(request).take_back(whole=is_whole, rest=ring.rest)
    request.content.feed_eof()


async def _from_ring(ring: BodyRing, pace: BodyPace) -> AsyncGenerator[Batch, None]:
    now_s = asyncio.get_running_loop().time
    try:
        while not ring.is_drained:
            started_s = now_s()
            with client_sends():
                pieces = await ring.next_pieces(pace.left_s)
            pace.note_arrival(sum(map(len, pieces)), waited_s=now_s() - started_s)
            if pieces:
                yield pieces
    except EOFError as error:
        raise ClientGone("the client disconnected while sending its body") from error
    except MalformedBody as error:
        raise InvalidRequest(f"The body does not match its framing headers: {error}.") from error


def _lent(request: web.Request) -> BodyRing | None:
    """Return a ring for the rest of the body, or None while the parser has some of it."""
    left_bytes = (request.content_length or 0) - request.content.total_bytes
    return _lender(request).lend(KnownLength(left_bytes)) if left_bytes else None


def _lender(request: web.Request) -> Lender:
    return request.protocol  # type: ignore[return-value]  # it is a connection of ours


def waits_to_go_on(request: web.Request) -> bool:
    """Whether the client waits for `100 Continue` before it sends its body (RFC 9110, section 10.1.1)."""
    wanted = request.headers.get(hdrs.EXPECT, "").lower() == "100-continue" and request.version >= (1, 1)
    return wanted and not request.get(_CONTINUED) and not request.content.is_eof()


async def _say_continue(request: web.Request) -> None:
    if waits_to_go_on(request):
        request[_CONTINUED] = True
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer proper has not begun


async def _awaited_piece(request: web.Request, pace: BodyPace) -> bytes | None:
    """Wait for the next piece at the client's pace: None for nothing yet, b"" at the end."""
    now_s = asyncio.get_running_loop().time
    started_s = now_s()
    with client_sends():
        piece = await _next_piece(request, pace.left_s)
    pace.note_arrival(len(piece or b""), waited_s=now_s() - started_s)
    return piece


async def _next_piece(request: web.Request, timeout_s: float) -> bytes | None:
    deadline = asyncio.timeout(timeout_s)
    piece = _taken_at_once(request)
    if piece or request.content.at_eof():
        return piece
    with _as_our_errors():
        try:
            async with deadline:
                return await request.content.readany()
        except TimeoutError:
            if deadline.expired():  # and not the kernel's ETIMEDOUT
                return None
            raise


def _taken_at_once(request: web.Request) -> bytes:
    """All that has arrived, b"" for nothing. The parser delivers what it has as soon as there is room."""
    with _as_our_errors():
        return b"".join(iter(request.content.read_nowait, b""))


@contextmanager
def _as_our_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: aiohttp's reader without a connection
        raise ClientGone("the client disconnected while sending its body") from error
    except web.RequestPayloadError as error:
        raise InvalidRequest("The body does not match its framing headers.") from error
