"""The least of gRPC over HTTP/2 that unary calls to etcd need, so that a client costs next to nothing.

Requests are bytes made once but for the message. Of an answer only this is read: whether a message came
before the stream ended. A call that fails ends without one (gRPC's "Trailers-Only"), so header compression
need not be undone. Source: RFC 9113 (frames, flow control), RFC 7541 (literals), gRPC's PROTOCOL-HTTP2.md.
"""

import asyncio
import ssl
import struct
from collections import deque
from enum import IntEnum

WINDOW_BYTES = 1 << 30  # we take all that comes: answers are small
WINDOW_BYTES_DEFAULT = 65_535  # of the other side until it says otherwise
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_HEAD_BYTES = 9
_END_STREAM = 0x1
_ACK = 0x1
_END_HEADERS = 0x4
_SETTINGS_INITIAL_WINDOW_SIZE = 4


class _Kind(IntEnum):
    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8


class CallFailed(Exception):
    """The server ended a call without an answer, or the connection."""


class UnaryConnection(asyncio.Protocol):
    """One connection to one server; many calls to one method may be under way. Use `connect`."""

    def __init__(self, path: str, authority: str, *, secure: bool) -> None:
        self._header_block = _header_block(path, authority, secure=secure)
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._next_stream = 1
        self._calls: dict[int, asyncio.Future[None]] = {}
        self._answered: set[int] = set()  # a message has come, the end of the stream not yet
        self._window_bytes = WINDOW_BYTES_DEFAULT  # what may still be sent on this connection
        self._waiting: deque[tuple[asyncio.Future[None], bytes]] = deque()

    async def call(self, message: bytes) -> None:
        """One call; returns when its answer has come. Raises CallFailed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((done, message))
        self._send_waiting()
        await done

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Preface, our settings, and a wide window."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]  # uvloop's are not derived from asyncio's
        settings = struct.pack(">HI", _SETTINGS_INITIAL_WINDOW_SIZE, WINDOW_BYTES)
        update = struct.pack(">I", WINDOW_BYTES - WINDOW_BYTES_DEFAULT)
        self._write(
            _PREFACE + _frame(_Kind.SETTINGS, 0, 0, settings) + _frame(_Kind.WINDOW_UPDATE, 0, 0, update)
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Whoever waits is told."""
        for done in (*self._calls.values(), *(done for done, _ in self._waiting)):
            if not done.done():
                done.set_exception(CallFailed(f"the connection ended: {exc}"))

    def data_received(self, data: bytes) -> None:
        """Take whole frames off."""
        received = self._received
        received += data
        at = 0
        while len(received) - at >= _FRAME_HEAD_BYTES:
            end = at + _FRAME_HEAD_BYTES + int.from_bytes(received[at : at + 3])
            if end > len(received):
                break
            stream = int.from_bytes(received[at + 5 : at + 9])
            self._take(
                received[at + 3], received[at + 4], stream, bytes(received[at + _FRAME_HEAD_BYTES : end])
            )
            at = end
        del received[:at]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _Kind.DATA and payload:
            self._answered.add(stream)
        if kind in (_Kind.DATA, _Kind.HEADERS) and flags & _END_STREAM:
            self._end(stream)
        elif kind == _Kind.WINDOW_UPDATE and stream == 0:
            self._window_bytes += int.from_bytes(payload)
            self._send_waiting()
        elif kind == _Kind.SETTINGS and not flags & _ACK:
            self._write(_frame(_Kind.SETTINGS, _ACK, 0, b""))
        elif kind == _Kind.PING and not flags & _ACK:
            self._write(_frame(_Kind.PING, _ACK, 0, payload))
        elif kind == _Kind.RST_STREAM:
            self._end(stream)
        elif kind == _Kind.GOAWAY:
            self.close()

    def _end(self, stream: int) -> None:
        done = self._calls.pop(stream)
        is_answered = stream in self._answered
        self._answered.discard(stream)
        if done.done():
            return
        if is_answered:
            done.set_result(None)
        else:
            done.set_exception(CallFailed("the server refused the call"))

    def _send_waiting(self) -> None:
        """What the other side's window has room for; a message is smaller than any stream's own window."""
        while self._waiting and len(self._waiting[0][1]) + 5 <= self._window_bytes:
            done, message = self._waiting.popleft()
            stream, self._next_stream = self._next_stream, self._next_stream + 2
            self._calls[stream] = done
            data = struct.pack(">BI", 0, len(message)) + message
            self._window_bytes -= len(data)
            self._write(
                _frame(_Kind.HEADERS, _END_HEADERS, stream, self._header_block)
                + _frame(_Kind.DATA, _END_STREAM, stream, data)
            )

    def _write(self, data: bytes) -> None:
        assert self._transport is not None, "not connected"
        self._transport.write(data)


async def connect(port: int, path: str, context: ssl.SSLContext | None) -> UnaryConnection:
    """A connection to a server on loopback. Raises OSError."""
    host = "127.0.0.1"
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: UnaryConnection(path, f"{host}:{port}", secure=context is not None),
        host,
        port,
        ssl=context,
        server_hostname=host if context is not None else None,
    )
    return connection


def _frame(kind: _Kind, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _header_block(path: str, authority: str, *, secure: bool) -> bytes:
    """The request's headers, without indexing or Huffman codes (RFC 7541, 6.1 and 6.2.2)."""
    method_post, scheme = b"\x83", b"\x87" if secure else b"\x86"
    return b"".join(
        (
            method_post,
            scheme,
            b"\x04" + _text(path),
            b"\x01" + _text(authority),
            b"\x0f\x10" + _text("application/grpc"),
            b"\x00" + _text("te") + _text("trailers"),
        )
    )


def _text(value: str) -> bytes:
    assert len(value) < 127, "a longer length takes more than one byte"
    return bytes((len(value),)) + value.encode("ascii")
