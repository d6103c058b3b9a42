"""Look up names of machines with a bounded number of threads, and cache the results.

The system's resolver answers in milliseconds or hangs for tens of seconds, together with its thread. So each
name is looked up only once at a time, in its own thread, which no other work needs and no exit waits for. The
number of these threads is bounded. If a known name cannot be looked up, its last addresses are used for a day
(RFC 8767): a certificate proves the identity of the peer in any case.
"""

import asyncio
import errno
import logging
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from aiohttp.abc import AbstractResolver, ResolveResult

LOOKUP_S: Final = 1.0  # half of what the dial of a coordinator may take
FRESH_S: Final = 5.0  # a name is not looked up again within this time
STALE_S: Final = 86_400.0  # the last addresses are used this long if there are no newer ones
LOOKUPS_MAX: Final = 16  # at once; those that hang take a thread each
NAMES_MAX: Final = 256  # the one not looked up for longest goes first; a cluster has fewer members
ADDRESSES_MAX: Final = 8  # of one name that are tried in turn

_SILENT: Final = "the resolver of this machine does not answer"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Found:
    """The addresses of a name with their families, and when they were looked up."""

    addresses: tuple[tuple[socket.AddressFamily, str], ...]
    at_s: float


def of_system(name: str) -> list[tuple[socket.AddressFamily, str]]:
    """Ask the system for a name. Blocks, perhaps for long. Raises OSError, UnicodeError."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((family, str(place[0])) for family, _, _, _, place in found))


class NameLookup(AbstractResolver):
    """The resolver of aiohttp, one for all connections of a process."""

    def __init__(
        self, system: Callable[[str], Sequence[tuple[socket.AddressFamily, str]]] = of_system
    ) -> None:
        """`system` is asked in a thread and may block; by default it is the system's resolver."""
        self._system = system
        self._found: OrderedDict[str, _Found] = OrderedDict()
        self._running: dict[str, Future[_Found]] = {}
        self._failing: set[str] = set()  # names whose failure was logged
        self._lock = threading.Lock()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of a name, to be tried in turn. Raises OSError, at the latest after LOOKUP_S."""
        found = await self._of(host)
        results = [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=kind,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, address in found.addresses
            if family in (socket.AF_UNSPEC, kind)
        ]
        if not results:
            raise OSError(errno.EADDRNOTAVAIL, f"the name {host} has no address")
        return results

    async def close(self) -> None:
        """Nothing is held that would have to be closed."""

    async def _of(self, name: str) -> _Found:
        known = self._found.get(name)
        now_s = time.monotonic()
        if known is not None and now_s - known.at_s < FRESH_S:
            return known
        try:
            found = await self._asked(name)
        except (OSError, UnicodeError) as error:
            if known is None or now_s - known.at_s > STALE_S:
                raise OSError(errno.EHOSTUNREACH, f"the name {name} cannot be looked up: {error}") from error
            self._tell(name, str(error))
            return known
        self._failing.discard(name)
        return found

    async def _asked(self, name: str) -> _Found:
        """Return the result of a running or a new lookup. Raises OSError."""
        with self._lock:
            running = self._running.get(name)
            known = self._found.get(name)
            if running is None and known is not None and time.monotonic() - known.at_s < FRESH_S:
                return known  # one that another asked for has just ended
            if running is None:
                running = self._begun(name)
            elif name in self._failing:  # it hangs, and there are addresses that may do
                raise OSError(errno.ETIMEDOUT, _SILENT)
        try:
            async with asyncio.timeout(LOOKUP_S):
                return await asyncio.wrap_future(running)
        except TimeoutError:
            raise OSError(errno.ETIMEDOUT, _SILENT) from None

    def _begun(self, name: str) -> "Future[_Found]":
        if len(self._running) >= LOOKUPS_MAX:
            raise OSError(errno.EAGAIN, f"{LOOKUPS_MAX} earlier name lookups are still running")
        future: Future[_Found] = Future()
        future.set_running_or_notify_cancel()  # who waits and gives up does not end it for others
        self._running[name] = future
        thread = threading.Thread(target=self._look_up, args=(name, future), name="name-lookup", daemon=True)
        thread.start()
        return future

    def _look_up(self, name: str, future: "Future[_Found]") -> None:
        """Look up a name. Runs in its own thread."""
        try:
            found = _Found(tuple(self._system(name))[:ADDRESSES_MAX], time.monotonic())
        except Exception as error:  # noqa: BLE001  # it belongs to those who wait
            with self._lock:
                del self._running[name]
            future.set_exception(error)
            return
        with self._lock:
            del self._running[name]
            self._found[name] = found
            self._found.move_to_end(name)
            if len(self._found) > NAMES_MAX:
                self._found.popitem(last=False)
        future.set_result(found)

    def _tell(self, name: str, reason: str) -> None:
        """Log a failing name once, until it works again."""
        if name not in self._failing:
            self._failing.add(name)
            facts = {"name_looked_up": name, "reason": reason}
            _log.warning("a name cannot be looked up: using its last known addresses", extra=facts)


NAMES: Final = NameLookup()
