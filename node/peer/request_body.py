"""The body of a request to a peer. Shared by all senders: it saves what aiohttp does for each piece.

aiohttp puts a chunk and its framing together in new memory, and what a peer is sent of a file was read whole
before. So a body may bring spans of a file in place of bytes: each is one chunk, read and encrypted a
little at a time, which stays in a core's cache. Measured on the links of a chain: a twentieth of the
processor time of all nodes together.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from web.internals.aiohttp_client import BodySentOnce, send_head

Piece = bytes | bytearray


class ByteSpan(Protocol):
    """Bytes that are read as they are sent.

    A Protocol, as `node.uploads.chain_link`, which has the one class of this kind, imports this module.
    """

    def __len__(self) -> int:
        """How many."""

    def read_now(self, start: int) -> Piece:
        """The next of them, from the `start`th on, where that waits for nothing; else none."""

    async def read(self, start: int) -> Piece:
        """Return bytes from `start` on, at least one."""


class PeerBody(BodySentOnce):
    """A body as it comes, in chunks (RFC 9112, section 7.1) where the request tells no length."""

    def __init__(self, pieces: AsyncGenerator[Piece | ByteSpan, None]) -> None:
        super().__init__(pieces)
        self._pieces = pieces

    async def send(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """See BodySentOnce."""
        lacking_bytes = content_length
        is_head_out = False
        async with aclosing(self._pieces) as pieces:
            async for piece in pieces:
                if lacking_bytes is not None:
                    lacking_bytes -= len(piece)
                    if lacking_bytes < 0:
                        raise ValueError(f"the body is longer than its {content_length} bytes")
                if not is_head_out:  # aiohttp keeps it back until something is written, and adds that
                    is_head_out = True
                    if isinstance(piece, Piece):
                        await writer.write(piece)
                        continue
                    await send_head(writer)
                if piece:
                    await _send(writer, piece, is_chunk=content_length is None)


async def _send(writer: AbstractStreamWriter, piece: Piece | ByteSpan, *, is_chunk: bool) -> None:
    if is_chunk:
        _write(writer, b"%x\r\n" % len(piece))
    if isinstance(piece, Piece):
        _write(writer, piece)
    else:
        await _send_span(writer, piece)
    if is_chunk:
        _write(writer, b"\r\n")
    await writer.drain()


async def _send_span(writer: AbstractStreamWriter, span: ByteSpan) -> None:
    """Send a span without waiting, while it is available and accepted: a wait costs as much as sending."""
    at, size_bytes = 0, len(span)
    while at < size_bytes:
        read = span.read_now(at) or await span.read(at)
        at += len(read)
        if _write(writer, read).get_write_buffer_size():
            await writer.drain()


def _write(writer: AbstractStreamWriter, data: Piece) -> asyncio.WriteTransport:
    transport = writer.transport
    if transport is None or transport.is_closing():
        raise aiohttp.ClientConnectionResetError("the connection is closing")
    transport.write(data)
    return transport
