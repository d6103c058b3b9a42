"""TLS straight on the socket, for connections that a listener took.

The loop's own transport passes every record through memory on its way between OpenSSL and the socket: two
copies more of each byte, a call for each record on both sides of them, and 20 KiB more for an idle
connection. Here OpenSSL reads and writes the socket itself, as nginx has it do.

What it writes and cannot send yet has to be offered again, the same bytes or more (SSL_write(3)): the backlog
keeps them. A renegotiation cannot happen: our contexts forbid it, and TLS 1.3 has none.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final

Data = bytes | bytearray | memoryview

RECORD_BYTES: Final = 16 << 10  # at most (RFC 8446, section 5.1), and all that one read gives
BURST_BYTES: Final = 512 << 10  # read of one connection; then the others on the loop have their turn
HIGH_WATER_BYTES: Final = 64 << 10  # as asyncio's own
DISCARD_BYTES: Final = 64 << 10
FLUSH_STALL_S: Final = 60.0  # a closed connection of which nothing leaves for so long is cut off


async def accept_tls(
    arrived: socket.socket,
    context: ssl.SSLContext,
    new_protocol: Callable[[], asyncio.Protocol],
    *,
    handshake_s: float,
    shutdown_s: float,
) -> None:
    """Shake hands, then hand the connection to a new protocol. `arrived` does not block; it is taken over.

    `shutdown_s`: how long a peer is waited for that does not end its side. Raises OSError (ssl.SSLError is
    one), TimeoutError; nothing is left open then, nor when this is cancelled.
    """
    loop = asyncio.get_running_loop()
    tls: ssl.SSLSocket | None = None
    try:
        tls = context.wrap_socket(arrived, server_side=True, do_handshake_on_connect=False)
        async with asyncio.timeout(handshake_s):
            await _shake_hands(loop, tls)
        TlsTransport(loop, tls, shutdown_s).begin(new_protocol())
    except BaseException:
        (tls or arrived).close()
        raise


async def _shake_hands(loop: asyncio.AbstractEventLoop, tls: ssl.SSLSocket) -> None:
    while True:
        ready = loop.create_future()
        try:
            tls.do_handshake()
            return
        except ssl.SSLWantReadError:
            watch, unwatch = loop.add_reader, loop.remove_reader
        except ssl.SSLWantWriteError:
            watch, unwatch = loop.add_writer, loop.remove_writer
        watch(tls.fileno(), _set, ready)
        try:
            await ready
        finally:
            unwatch(tls.fileno())


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class TlsTransport(asyncio.Transport):
    """One connection after its handshake. The protocol may change, between the two kinds as well."""

    __slots__ = (
        "_backlog",
        "_backlog_bytes",
        "_fd",
        "_high_bytes",
        "_into",
        "_is_closing",
        "_is_lost",
        "_is_reading",
        "_loop",
        "_low_bytes",
        "_protocol",
        "_reads_when_writable",
        "_shutdown_s",
        "_timer",
        "_tls",
        "_writing_paused",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, tls: ssl.SSLSocket, shutdown_s: float) -> None:
        super().__init__(
            {"peername": tls.getpeername(), "socket": tls, "ssl_object": tls, "sslcontext": tls.context}
        )
        self._loop, self._tls, self._fd = loop, tls, tls.fileno()
        self._shutdown_s = shutdown_s
        self._timer: asyncio.TimerHandle | None = None
        self._backlog: list[memoryview] = []  # the first is what OpenSSL was offered last
        self._backlog_bytes = 0
        self._is_reading = self._reads_when_writable = False
        self._is_closing = self._is_lost = self._writing_paused = False
        self.set_write_buffer_limits()

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Tell the protocol, and read for it."""
        self.set_protocol(protocol)
        protocol.connection_made(self)
        if not self._is_closing:
            self.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """From the next bytes on."""
        self._protocol: Any = protocol
        self._into = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who is told now."""
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As asyncio's; of a connection that closes nobody is told any more who is at its other end."""
        return default if self._is_closing and name == "ssl_object" else super().get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Whether it is closed, or will be once the backlog is sent."""
        return self._is_closing

    def is_reading(self) -> bool:
        """Whether the protocol gets what comes."""
        return self._is_reading

    def pause_reading(self) -> None:
        """The protocol gets nothing more for now."""
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        """The protocol gets what comes, and what has come."""
        if self._is_reading or self._is_closing:
            return
        self._is_reading = True
        self._loop.add_reader(self._fd, self._read)
        if self._tls.pending():  # decrypted already: the socket does not tell of it
            self._loop.call_soon(self._read)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio.WriteTransport."""
        self._high_bytes = HIGH_WATER_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """See asyncio.WriteTransport."""
        return self._low_bytes, self._high_bytes

    def get_write_buffer_size(self) -> int:
        """Bytes that were written and not sent, before their encryption."""
        return self._backlog_bytes

    def write(self, data: Data) -> None:
        """Send now what the socket takes, and the rest when it takes more. Ignored once it closes."""
        if self._is_closing or not data:
            return
        offered = memoryview(data)
        if offered.format != "B":
            offered = offered.cast("B")
        if not self._backlog:
            try:
                offered = self._send(offered)
            except OSError as error:
                self._lose(error)
                return
            if not offered:
                return
            self._loop.add_writer(self._fd, self._write_more)
        # Who owns other memory than bytes may change it after this.
        self._backlog.append(offered if isinstance(data, bytes) else memoryview(bytes(offered)))
        self._backlog_bytes += len(offered)
        if self._backlog_bytes > self._high_bytes and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Data]) -> None:
        """All in as few records as can be."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """TLS as asyncio knows it cannot end one direction alone."""
        return False

    def close(self) -> None:
        """Read no more, send what waits, say goodbye, and wait a while for the peer to do the same."""
        if self._is_closing:
            return
        self.pause_reading()
        self._is_closing = True
        if self._backlog:
            self._timer = self._loop.call_later(FLUSH_STALL_S, self._look, self._backlog_bytes)
        else:
            self._say_goodbye()

    def abort(self) -> None:
        """Close at once; what was not sent is lost."""
        self._lose(None)

    def _read(self) -> None:
        """Bytes are there, or the end."""
        if not self._is_reading:
            return  # paused since this was to be called
        self._reads_when_writable = False
        try:
            is_open = self._read_into() if self._into else self._read_data()
            if not is_open:
                self.pause_reading()
                self._protocol.eof_received()
                self.close()
            elif self._is_reading and self._tls.pending():
                self._loop.call_soon(self._read)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError:  # an answer of TLS itself has to go out first
            self._reads_when_writable = True
            self._loop.add_writer(self._fd, self._write_more)
        except OSError as error:
            self._lose(error)
        except Exception as error:  # noqa: BLE001  # of the protocol: the connection cannot go on
            self._loop.call_exception_handler(
                {"message": "a protocol failed", "exception": error, "transport": self}
            )
            self._lose(error)

    def _read_data(self) -> bool:
        """Hand over what is there. Whether more may come. Raises OSError."""
        for _ in range(BURST_BYTES // RECORD_BYTES):
            data = self._tls.recv(RECORD_BYTES)
            if not data:
                return False
            self._protocol.data_received(data)
            if len(data) < RECORD_BYTES or not self._is_reading or self._into:
                break  # behind less than a whole record there is nothing, as a rule
        return True

    def _read_into(self) -> bool:
        """Fill a buffer of the protocol with what is there. Whether more may come. Raises OSError."""
        buffer = memoryview(self._protocol.get_buffer(-1))[:BURST_BYTES]
        filled_bytes, stop = 0, None
        while filled_bytes < len(buffer):
            try:
                count = self._tls.recv_into(buffer[filled_bytes:])
            except OSError as error:  # what came before it is told first
                stop = error
                break
            if count == 0:
                break
            filled_bytes += count
        is_open = stop is not None or filled_bytes == len(buffer)
        if filled_bytes:
            self._protocol.buffer_updated(filled_bytes)
        if stop is not None:
            raise stop
        return is_open

    def _send(self, offered: memoryview) -> memoryview:
        """Encrypt and send until the socket takes no more; what is left comes back. Raises OSError."""
        try:
            while offered:
                offered = offered[self._tls.send(offered) :]
        except ssl.SSLWantWriteError:
            pass
        return offered

    def _write_more(self) -> None:
        """The socket takes more."""
        try:
            while self._backlog:
                offered = self._backlog[0]
                self._backlog[0] = left = self._send(offered)
                self._backlog_bytes -= len(offered) - len(left)
                if left:
                    break
                del self._backlog[0]
        except OSError as error:
            self._lose(error)
            return
        if not self._backlog:
            self._loop.remove_writer(self._fd)
            if self._is_closing:
                self._say_goodbye()
        if self._reads_when_writable:
            self._read()
        if self._writing_paused and self._backlog_bytes <= self._low_bytes and not self._is_lost:
            self._writing_paused = False
            self._protocol.resume_writing()

    def _look(self, earlier_bytes: int) -> None:
        """Go on with who takes something of what was left when it was closed."""
        if self._backlog_bytes == earlier_bytes:
            self._lose(None)
        elif self._backlog:
            self._timer = self._loop.call_later(FLUSH_STALL_S, self._look, self._backlog_bytes)

    def _say_goodbye(self) -> None:
        """End our side, and wait for the peer's end: a reset could take from it what it has not read yet."""
        try:
            self._tls.unwrap()
            self._lose(None)  # the peer was first: nothing of it is on its way
            return
        except ssl.SSLWantWriteError:
            self._loop.add_writer(self._fd, self._write_more)
            return
        except (OSError, ValueError):
            pass  # ours is out, which is enough (RFC 8446, section 6.1), or the peer has gone
        try:
            self._tls.shutdown(socket.SHUT_WR)
        except OSError:
            self._lose(None)
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._shutdown_s, self._lose, None)
        self._loop.add_reader(self._fd, self._discard)

    def _discard(self) -> None:
        """What the peer sends after our end, until its own."""
        try:
            if self._tls.recv(DISCARD_BYTES):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._lose(None)

    def _lose(self, cause: Exception | None) -> None:
        """The end."""
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._is_reading = False
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        if self._timer is not None:
            self._timer.cancel()
        self._backlog, self._backlog_bytes = [], 0
        self._loop.call_soon(self._end, cause)

    def _end(self, cause: Exception | None) -> None:
        try:
            self._protocol.connection_lost(cause)
        finally:
            with contextlib.suppress(OSError):
                self._tls.close()
