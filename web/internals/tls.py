"""TLS of accepted connections: asyncio's protocol on top of the loop's plain transport, in bounded memory.

uvloop's own TLS has a buffer of 256 KiB for each connection, all of which becomes resident in time, and
encrypts all written data at once. Here the connections of a listener share the receive buffer and the buffer
that OpenSSL writes into, which is empty again after each turn of a connection. Written data is encrypted only
as far as the socket accepts it. States, handshake and flow control are those of `asyncio.sslproto`, which
came from uvloop.

It leans on private names of `SSLProtocol` and on what its methods call, as the package lists them: read its
changes before an upgrade of Python.
"""

import asyncio
import contextvars
import math
import os
import re
import socket
import ssl
from asyncio import sslproto
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

RECEIVED_BYTES_MAX: Final = 128 << 10  # of one connection, in a turn of the loop
TAKEN_BYTES: Final = 64 << 10  # decrypted at a time: both halves of it stay in a core's cache
SLICE_BYTES: Final = 63 << 10  # encrypted, and sent, at a time: with what that adds, one packet of 64 KiB
RECORD_BYTES: Final = 16 << 10  # of content at most (RFC 8446, section 5.1)
UNTAKEN_BYTES_MAX: Final = 256 << 10  # of ciphertext; a slice waits at most, and answers to key updates
_HTTP: Final = re.compile(rb"[A-Z]{3,16} [/*h]")  # how a request without TLS begins
_OPEN: Final = sslproto.SSLProtocolState.WRAPPED
_FLUSHING: Final = sslproto.SSLProtocolState.FLUSHING
_Transport: Any = sslproto._SSLProtocolTransport  # as Any: the known types are those of Python 3.10
_Protocol: Any = sslproto.SSLProtocol

Data = bytes | bytearray | memoryview


class TlsListening:
    """The buffers that the TLS connections of one listener share. For one event loop."""

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        handshake_s: float,
        shutdown_s: float,
        not_tls: Callable[[], bytes] = bytes,
    ) -> None:
        """Make what the connections share.

        `handshake_s`: how long a handshake may take; `shutdown_s`: how long the goodbyes may. `not_tls` makes
        the answer to a request without TLS.
        """
        self.context = context
        self.not_tls = not_tls
        self.handshake_s = handshake_s
        self.shutdown_s = shutdown_s
        self.received = memoryview(bytearray(RECEIVED_BYTES_MAX))
        self.outgoing = ssl.MemoryBIO()
        self.variables = contextvars.copy_context()

    async def accept(self, arrived: socket.socket, protocol: asyncio.Protocol) -> None:
        """Hand an accepted connection to `protocol` once its handshake has ended. Raises OSError."""
        loop = asyncio.get_running_loop()
        shaken: asyncio.Future[None] = loop.create_future()
        made = _Tls(self, protocol, shaken)
        transport, _ = await loop.connect_accepted_socket(lambda: made, arrived)
        try:
            await shaken
            if transport.is_closing():
                raise ConnectionResetError("the connection ended with its handshake")
        except BaseException:
            transport.abort()
            raise
        finally:
            del shaken  # else it, its exception and this frame would keep each other, and the connection


class _TlsTransport(_Transport):  # type: ignore[misc]
    """The transport that the application's protocol writes to."""

    __slots__ = ("_closed", "_loop", "_ssl_protocol")

    _ssl_protocol: "_Tls"

    def __del__(self) -> None:
        """Do nothing: the transport below warns if it was not closed."""

    def close(self) -> None:
        """Close the connection. May be called twice: its facts stay available."""
        if not self._closed:
            super().close()

    def write(self, data: Data) -> None:
        """Send the data, or keep what cannot be sent yet."""
        if not self._ssl_protocol.send_at_once(data):
            super().write(data)

    def is_closing(self) -> bool:
        """Whether it closes; also when the connection below has broken."""
        return bool(self._closed) or self._ssl_protocol.is_broken


class _Tls(_Protocol):  # type: ignore[misc]
    """One connection, from its first byte."""

    # With what the base class keeps: in a dictionary it would take a KiB more.
    __slots__ = (
        "_app_protocol",
        "_app_protocol_buffer_updated",
        "_app_protocol_get_buffer",
        "_app_protocol_is_buffer",
        "_app_reading_paused",
        "_app_state",
        "_app_transport",
        "_app_transport_created",
        "_app_writing_paused",
        "_conn_lost",
        "_eof_received",
        "_extra",
        "_handshake_start_time",
        "_handshake_timeout_handle",
        "_incoming",
        "_incoming_high_water",
        "_incoming_low_water",
        "_listening",
        "_loop",
        "_outgoing",
        "_outgoing_high_water",
        "_outgoing_low_water",
        "_server_hostname",
        "_server_side",
        "_shutdown_timeout_handle",
        "_ssl_buffer",
        "_ssl_buffer_view",
        "_ssl_handshake_timeout",
        "_ssl_reading_paused",
        "_ssl_shutdown_timeout",
        "_ssl_writing_paused",
        "_sslcontext",
        "_sslobj",
        "_state",
        "_transport",
        "_unsent_bytes",
        "_waiter",
        "_write_backlog",
        "_write_buffer_size",
    )
    max_size = RECORD_BYTES

    def __init__(
        self, listening: TlsListening, protocol: asyncio.Protocol, shaken: "asyncio.Future[None]"
    ) -> None:
        super().__init__(
            asyncio.get_running_loop(),
            protocol,
            listening.context,
            shaken,
            server_side=True,
            ssl_handshake_timeout=listening.handshake_s,
            ssl_shutdown_timeout=listening.shutdown_s,
        )
        self._unsent_bytes = math.inf  # when a connection that ends was last looked at
        self._handshake_start_time = self._handshake_timeout_handle = self._shutdown_timeout_handle = None
        self._listening = listening
        self._ssl_buffer = b""
        self._ssl_buffer_view = listening.received
        self._outgoing = listening.outgoing
        self._sslobj = listening.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._write_backlog: list[Data] = []
        self._set_read_buffer_limits(high=TAKEN_BYTES)

    @property
    def is_broken(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._transport is None or self._transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin the handshake. The plain transport reports whether it has bytes that it cannot send."""
        transport.set_write_buffer_limits(high=0)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection ends: nothing waits any more."""
        super().connection_lost(exc)
        self._write_buffer_size = 0
        self._app_protocol_get_buffer = self._app_protocol_buffer_updated = _nobody

    def get_buffer(self, n: int) -> memoryview:  # noqa: ARG002
        """The memory that the next bytes are written into; `buffer_updated` takes them out at once."""
        return self._listening.received

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt what has come. In slices, as OpenSSL's buffer for them never becomes smaller again."""
        received = self._listening.received
        try:
            if nbytes <= TAKEN_BYTES and self._state is _OPEN:
                self._incoming.write(received[:nbytes])
                self._do_read()
                return
            for start in range(0, nbytes, TAKEN_BYTES):
                self._ssl_buffer_view = received[start:]
                super().buffer_updated(min(TAKEN_BYTES, nbytes - start))
        finally:
            self._leave_nothing()

    def send_at_once(self, data: Data) -> bool:
        """Whether the data was sent the short way, as a small answer or a slice may be; then all is done."""
        is_free = self._state is _OPEN and not (self._ssl_writing_paused or self._write_backlog)
        if not is_free or not 0 < len(data) <= SLICE_BYTES:
            return False
        try:
            self._sslobj.write(data)  # all of it: the buffer behind it has no end
            self._send()
        except Exception as error:  # noqa: BLE001  # as everywhere in the base class
            self._fatal_error(error, "Fatal error on SSL protocol")
        return True

    def pause_writing(self) -> None:
        """Stop writing until the socket accepts more."""
        self._ssl_writing_paused = True

    def resume_writing(self) -> None:
        """All that was encrypted has left."""
        self._ssl_writing_paused = False
        self._try_write()

    def _get_app_transport(self) -> _TlsTransport:
        """The transport for the application, asked for at the start and after the handshake."""
        known: _TlsTransport | None = getattr(self, "_app_transport", None)
        self._app_transport = known or _TlsTransport(self._loop, self)
        return self._app_transport

    def _write_appdata(self, list_of_data: Iterable[Data]) -> None:
        """Send what the socket takes, and keep the rest: the caller may use its memory again."""
        if self._write_backlog:
            super()._write_appdata([_unchanging(data) for data in list_of_data])
            return
        super()._write_appdata(list_of_data)
        if self._write_backlog:
            self._write_backlog[:] = map(_unchanging, self._write_backlog)

    def _do_write(self) -> None:
        """Encrypt what waits: as long as the socket takes it, or all of it when the connection ends."""
        backlog, done = self._write_backlog, 0
        try:
            while done < len(backlog) and not (self._ssl_writing_paused and self._state is _OPEN):
                data = backlog[done]
                count = self._sslobj.write(
                    data if len(data) <= SLICE_BYTES else memoryview(data)[:SLICE_BYTES]
                )
                if count == len(data):
                    done += 1
                else:
                    backlog[done] = memoryview(data)[count:]
                self._write_buffer_size -= count
                if self._outgoing.pending >= SLICE_BYTES:
                    self._send()
        except sslproto.SSLAgainErrors:
            pass
        finally:
            del backlog[:done]
        self._process_outgoing()

    def _try_write(self) -> None:
        try:
            self._do_write()
        except Exception as error:  # noqa: BLE001  # as everywhere in the base class
            self._fatal_error(error, "Fatal error on SSL protocol")

    def _process_outgoing(self) -> None:
        self._send()
        if self._ssl_writing_paused or self._app_writing_paused or self._write_backlog:
            self._control_app_writing()

    def _send(self) -> None:
        """Give what OpenSSL wrote to the plain transport, which sends it now if it can."""
        if not self._outgoing.pending:
            return
        data, transport = self._outgoing.read(), self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(data)
        if self._ssl_writing_paused and self._state is _OPEN:
            untaken_bytes = transport.get_write_buffer_size()
            if untaken_bytes > UNTAKEN_BYTES_MAX:
                self._fatal_error(ConnectionAbortedError("answers to key updates are not taken"))

    def _leave_nothing(self) -> None:
        """Drop what a turn has not sent: its connection failed, and no other connection may send it."""
        if self._outgoing.pending:
            self._outgoing.read()

    def _do_read__copied(self) -> None:
        """Hand over what has come, all of it at once."""
        read, incoming = self._sslobj.read, self._incoming
        pieces: list[bytes] = []
        is_end = False
        try:
            while not is_end:
                if piece := read(RECORD_BYTES):
                    pieces.append(piece)
                    if not incoming.pending:  # to ask again would raise, which costs more than all else here
                        break
                is_end = not piece
        except sslproto.SSLAgainErrors:
            pass
        self._send()  # before callbacks, which may write to another connection
        if pieces:
            self._app_protocol.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if is_end:
            self._end()

    def _do_read__buffered(self) -> None:
        """Fill a buffer of the application, as far as it goes."""
        read, incoming, pending = self._sslobj.read, self._incoming, self._sslobj.pending
        buffer = memoryview(self._app_protocol_get_buffer(RECORD_BYTES))
        at, size_bytes, is_end = 0, len(buffer), False
        try:
            while at < size_bytes:
                count = int(read(size_bytes - at, buffer[at:]))
                at += count
                is_end = not count
                if is_end or not (incoming.pending or pending()):
                    break
            else:
                self._loop.call_soon(self._do_read)
        except sslproto.SSLAgainErrors:
            pass
        self._send()
        if at:
            self._app_protocol_buffer_updated(at)
        if is_end:
            self._end()

    def _end(self) -> None:
        """The other side has said goodbye."""
        self._call_eof_received()
        self._start_shutdown()

    def _on_handshake_complete(self, handshake_exc: BaseException | None) -> None:
        """Send the last of the handshake before the application writes anything, here or elsewhere."""
        if handshake_exc is None:
            self._send()
        elif isinstance(handshake_exc, ssl.SSLError) and _HTTP.match(self._listening.received):
            with suppress(OSError):  # past the transport, which is closed now and sends nothing more
                os.write(self._transport.get_extra_info("socket").fileno(), self._listening.not_tls())
        super()._on_handshake_complete(handshake_exc)

    def _wakeup_waiter(self, exc: BaseException | None = None) -> None:
        """Wake it without the frames of the base class.

        They refer to the error, which would refer to them.
        """
        super()._wakeup_waiter(None if exc is None else exc.with_traceback(None))

    def _start_shutdown(self) -> None:
        """Begin to shut down.

        It does so too when the other side has ended, and what it sent has waited for a reader since.
        """
        if self._state is _FLUSHING and self._eof_received and self._app_reading_paused:
            self._do_flush()
        else:
            super()._start_shutdown()

    def _do_flush(self) -> None:
        """The end begins: what still waits goes before the goodbye."""
        self._try_write()
        self._do_read()
        if self._state is _FLUSHING:
            self._set_state(sslproto.SSLProtocolState.SHUTDOWN)
            self._do_shutdown()

    def _do_shutdown(self) -> None:
        """Send the closing alert and wait for the peer's; data that arrives before it is discarded."""
        try:
            while self._sslobj.read(RECORD_BYTES):
                pass
        except (*sslproto.SSLAgainErrors, ssl.SSLZeroReturnError):
            pass
        except ssl.SSLError as error:
            self._on_shutdown_complete(error)
            return
        self._control_ssl_reading()
        super()._do_shutdown()

    def _on_shutdown_complete(self, shutdown_exc: BaseException | None) -> None:
        """Give the plain transport the rest of the same time to send what it still has."""
        timer, self._shutdown_timeout_handle = self._shutdown_timeout_handle, None
        super()._on_shutdown_complete(shutdown_exc)
        self._shutdown_timeout_handle = timer or self._loop.call_later(
            self._ssl_shutdown_timeout, self._check_shutdown_timeout
        )

    def _check_shutdown_timeout(self) -> None:
        """Cut off a client that has accepted nothing for this time; slow progress is allowed."""
        earlier_bytes, self._unsent_bytes = self._unsent_bytes, self._get_write_buffer_size()
        if 0 < self._unsent_bytes < earlier_bytes:
            self._shutdown_timeout_handle = self._loop.call_later(
                self._ssl_shutdown_timeout, self._check_shutdown_timeout
            )
        else:
            super()._check_shutdown_timeout()

    def _control_app_writing(self) -> None:
        if self._app_protocol is not None:
            super()._control_app_writing()

    def _get_write_buffer_size(self) -> int:
        below_bytes = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return int(below_bytes + self._write_buffer_size)

    def _resume_reading(self) -> None:
        """Read on, but not in the context of the request that resumes: what comes next is not part of it."""
        self._listening.variables.run(super()._resume_reading)

    def _fatal_error(self, exc: BaseException, message: str = "Fatal error on transport") -> None:
        self._leave_nothing()
        super()._fatal_error(exc, message)


def _nobody(*_: object) -> memoryview:
    """Stand in for methods that would keep their object alive."""
    return memoryview(b"")


def _unchanging(data: Data) -> Data:
    """Return the data in memory that cannot change."""
    is_constant = type(data) is bytes or (type(data) is memoryview and type(data.obj) is bytes)
    return data if is_constant else bytes(data)
