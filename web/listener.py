"""A listening socket: what arrives is counted and refused beyond a bound, before it costs anything.

The loop's own server starts the TLS handshake with every client, and counts clients only after it. Here a
connection beyond the bound is closed as soon as it is accepted, so that silent or greedy clients leave
descriptors for the clients that are being served, and for files.
"""

import asyncio
import errno
import ipaddress
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final

from ca.errors import InvalidRequest
from ca.hostnames import is_literal, is_loopback_name
from runtime.lifetime import descriptor_limit
from runtime.metrics import ALL_TAKEN, GREEDY
from web.internals.tls import TlsListening
from web.rate_limits import network_of

CONNECTIONS_MAX: Final = 10_000  # of one listener
# an address may have this many times the remaining places: four fifths if alone, never all if ten
GREED: Final = 4
REFUSED_LOG_INTERVAL_S: Final = 10.0  # between two lines of the log about it
ACCEPTS_MAX: Final = 64  # at a time; then others on the loop have their turn
BACKLOG: Final = 512
LOOPBACK: Final = "127.0.0.1"
EVERYWHERE: Final = "::"  # of IPv4 too
# The kernel buffers up to this much of a response to a member beyond the member's own buffer. It sends the
# rest of a large response when the reader has room, and in the reader's time if both are on one machine:
# measured, a tenth of the work of a node that forwards a download. A larger value would cost as much memory
# for each slow reader.
PEER_UNSENT_BYTES: Final = 128 << 10
# And of one to a client without encryption: over loopback the kernel's bbr is quick with it only. The sender
# is woken when half of that is left, which at 10 Gbit/s lasts a tenth of a millisecond.
PLAIN_UNSENT_BYTES: Final = 256 << 10
EXHAUSTED_PAUSE_S: Final = 0.5  # accepting again at once would fail again
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_NO_IPV6: Final = frozenset(
    {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}
)  # if the kernel lacks it, or has it disabled
_log = logging.getLogger("filestore.http")


class Places:
    """The limit of connections for some listeners of this process together.

    Clients get half of the descriptors, members an eighth. The rest is for files and for this process's
    connections to others, even if the listeners use their whole share. The more places are in use, the fewer
    one address may have, so that a few addresses never get all of them (Choudhury and Hahne, Dynamic Queue
    Length Thresholds for Shared-Memory Packet Switches, 1998).
    """

    def __init__(self, *, peers: bool = False) -> None:
        share = descriptor_limit() // (8 if peers else 2)
        self.most = min(CONNECTIONS_MAX, share)
        self._holders: dict[object, str] = {}
        self._counts: Counter[str] = Counter()

    @property
    def connection_count(self) -> int:
        """How many connections there are."""
        return len(self._holders)

    @property
    def left(self) -> int:
        """How many more connections there may be."""
        return self.most - self.connection_count

    def take(self, network: str) -> object | None:
        """Take a place for this network (see `network_of`; "" is one of ours); None if there is none left."""
        if not self.left or (network and self._counts[network] >= GREED * self.left):
            return None
        token = object()
        self._holders[token] = network
        self._counts[network] += 1
        return token

    def give_back(self, token: object) -> None:
        """Give a place back. Doing it twice is harmless."""
        network = self._holders.pop(token, None)
        if network is not None:
            self._counts[network] -= 1
            if not self._counts[network]:
                del self._counts[network]


class CannotListen(OSError):
    """The address is another process's, or not this machine's; `filename` says which."""


async def listening_socket(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A bound, listening socket; see `bound_socket`. Raises CannotListen, OSError."""
    return start_listening(await bound_socket(host, port, shared=shared))


async def bound_socket(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket that has its port, 0 for a free one, where connections are refused until `start_listening`.

    `host` is an address of this machine, or its name: then it listens on all of them. What a name leads to is
    for others to find out, and may change; many a machine takes its own name for loopback. `shared`: other
    processes of this user may listen there too, and the kernel deals connections out. Raises CannotListen,
    OSError.
    """
    try:
        return _bound(*place_of(host, port), shared=shared)
    except OSError as error:
        if is_literal(host) or is_loopback_name(host) or error.errno not in _NO_IPV6:
            raise _cannot_listen(error, host, port) from error
    try:
        return _bound(socket.AF_INET, ("0.0.0.0", port), shared=shared)  # noqa: S104  # as was said
    except OSError as error:
        raise _cannot_listen(error, host, port) from error


def start_listening(bound: socket.socket) -> socket.socket:
    """Start to accept connections on a bound socket. Raises CannotListen, and closes the socket then."""
    try:
        bound.listen(BACKLOG)
    except OSError as error:  # another process has started to listen in the meantime
        host, port = bound.getsockname()[:2]
        bound.close()
        raise _cannot_listen(error, host, port) from error
    return bound


def _cannot_listen(error: OSError, host: str, port: int) -> CannotListen:
    return CannotListen(error.errno, error.strerror, f"{host}:{port}")


def place_of(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """The family of an address to listen at, and that address; of a name both families."""
    if is_loopback_name(host):
        host = LOOPBACK
    elif not is_literal(host):
        host = EVERYWHERE
    return (socket.AF_INET6 if ":" in host else socket.AF_INET), (host, port)


def _bound(family: socket.AddressFamily, address: tuple[str, int], *, shared: bool) -> socket.socket:
    """Raises OSError."""
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != EVERYWHERE)
        listening.bind(address)
    except BaseException:
        listening.close()
        raise
    return listening


class Acceptor:
    """The connections that arrive at one listening socket, from `start` to `close`."""

    def __init__(
        self,
        listening: socket.socket,
        new_connection: Callable[[Callable[[], None]], asyncio.Protocol],
        *,
        ssl_context: ssl.SSLContext | None,
        handshake_s: float,
        shutdown_s: float,
        places: Places,
        on_refused: Callable[[str], None],
        is_ours: Callable[[str], bool] = lambda _address: False,
        not_tls: Callable[[], bytes] = bytes,
        unsent_bytes: int = 0,
    ) -> None:
        """`new_connection` makes the protocol of each; it is handed what to call when its connection ends.

        `unsent_bytes`: what the kernel may keep for each that cannot be sent yet, 0 for as much as it likes
        (TCP_NOTSENT_LOWAT). `is_ours`: of a proxy, behind whose address are many clients, which may have all
        places. `on_refused` is called for each that is closed as it comes, with ALL_TAKEN or
        GREEDY; `not_tls` is asked what to answer to a request without TLS.
        """
        self._is_local = listening.family == socket.AF_UNIX
        self.port: int = 0 if self._is_local else listening.getsockname()[1]
        self._listening = listening
        self._new_connection = new_connection
        self._tls: TlsListening | None = None
        if ssl_context is not None:
            self._tls = TlsListening(
                ssl_context, handshake_s=handshake_s, shutdown_s=shutdown_s, not_tls=not_tls
            )
        self._places = places
        self._unsent_bytes = unsent_bytes
        self._on_refused = on_refused
        self._is_ours = is_ours
        self._log_refused_at_s = 0.0
        self._beginning: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Accept from now on. It must be called inside the event loop."""
        self._pause = None
        asyncio.get_running_loop().add_reader(self._listening, self._accept)

    async def close(self) -> None:
        """Accept nothing more; handshakes that have not ended are broken off. Again is harmless."""
        if self._listening.fileno() < 0:
            return
        asyncio.get_running_loop().remove_reader(self._listening)
        if self._pause is not None:
            self._pause.cancel()
        self._listening.close()
        await asyncio.sleep(0)  # a task that is cancelled before it starts would leave its socket open
        for beginning in self._beginning:
            beginning.cancel()
        await asyncio.gather(*self._beginning, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                arrived, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._rest(error)
                return
            network = "" if self._is_local or self._is_ours(address[0]) else network_of(address[0])
            if (token := self._places.take(network)) is None:
                arrived.close()
                self._refused(network)
                continue
            beginning = asyncio.get_running_loop().create_task(self._begin(arrived, token))
            self._beginning.add(beginning)
            beginning.add_done_callback(self._beginning.discard)

    async def _begin(self, arrived: socket.socket, token: object) -> None:
        """Hand the connection on, through the TLS handshake where there is one."""
        loop = asyncio.get_running_loop()
        arrived.setblocking(False)
        try:
            if not self._is_local:
                arrived.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._unsent_bytes:
                    arrived.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, self._unsent_bytes)
            protocol = self._new_connection(lambda: self._places.give_back(token))
            if self._tls is not None:
                await self._tls.accept(arrived, protocol)
            else:
                await loop.connect_accepted_socket(lambda: protocol, arrived)
        # includes ssl.SSLError: no handshake, or a client that has gone
        except (OSError, TimeoutError) as error:
            self._places.give_back(token)
            _log.debug("connection not started", extra={"cause": type(error).__name__})
        except asyncio.CancelledError:
            self._places.give_back(token)
            raise

    def _refused(self, network: str) -> None:
        self._on_refused(GREEDY if self._places.left else ALL_TAKEN)
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._log_refused_at_s:
            self._log_refused_at_s = now_s + REFUSED_LOG_INTERVAL_S
            facts = {
                "client": network,
                "connections": self._places.connection_count,
                "connections_max": self._places.most,
            }
            _log.warning("too many connections: new ones are refused", extra=facts)

    def _rest(self, error: OSError) -> None:
        """Descriptors have run out: try again when some may have been given back."""
        _log.error("cannot accept connections", extra={"reason": error.strerror})
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listening)
        self._pause = loop.call_later(EXHAUSTED_PAUSE_S, self.start)


def loopback_listener(text: str) -> tuple[str, int]:
    """Host and port of a plain listener. Raises InvalidRequest for anything but a loopback address."""
    host, _, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        number = int(port)
    except ValueError:
        raise InvalidRequest("--http: must be ADDRESS:PORT.") from None
    if not address.is_loopback or not 0 <= number <= 65535:
        raise InvalidRequest("--http: without TLS only a loopback address is allowed.")
    return str(address), number
