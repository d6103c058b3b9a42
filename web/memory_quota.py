"""The memory that a process uses for clients, within a quota. Shared by connections and bodies.

It counts large responses until they are sent, large bodies until they have arrived, and bodies of content
until they are stored. Slow clients keep this memory in use, and there may be thousands. So all clients
together have BUFFERED_BYTES_MAX, in addition to SMALL_BYTES for each connection. The share of one address
shrinks with the remaining quota, as with connections (`web/listener.py`), so that a few addresses never use
all of it. For one event loop.
"""

from collections import Counter
from typing import Final

from ca.errors import RateLimited
from web.listener import GREED
from web.rate_limits import network_of

BUFFERED_BYTES_MAX: Final = 64 << 20  # some twenty of the longest pages; TLS, which copies, takes twice this
SMALL_BYTES: Final = 64 << 10  # as much as the buffers of any connection hold
RETRY_AFTER_S: Final = 5


class BufferedBytes:
    """The bytes that clients have, by address."""

    def __init__(self) -> None:
        self._bytes: Counter[str] = Counter()

    @property
    def left_bytes(self) -> int:
        """How many more bytes may be used; below 0 after some that could not be refused."""
        return BUFFERED_BYTES_MAX - self._bytes.total()

    def share(self, address: str) -> "Share":
        """A share for a client of this address, "" for one of our own processes; it has nothing yet."""
        return Share(self, network_of(address) if address else "")

    def take(self, network: str, size_bytes: int) -> None:
        """Count these bytes. Raises RateLimited if the quota, or the share of this network, is used up."""
        left_bytes = self.left_bytes - size_bytes
        if left_bytes < 0 or (network and self._bytes[network] > GREED * left_bytes):
            raise RateLimited(
                "Too much memory is in use for answers to slow clients. Ask for smaller pages.",
                retry_after_s=RETRY_AFTER_S,
            )
        self.take_unconditionally(network, size_bytes)

    def take_unconditionally(self, network: str, size_bytes: int) -> None:
        """Count bytes that cannot be refused any more."""
        self._bytes[network] += size_bytes

    def give_back(self, network: str, size_bytes: int) -> None:
        """Count these bytes no more."""
        self._bytes[network] -= size_bytes
        if not self._bytes[network]:
            del self._bytes[network]


class Share:
    """The bytes in memory for one request."""

    __slots__ = ("_buffered", "_network", "_size_bytes")

    def __init__(self, buffered: BufferedBytes, network: str) -> None:
        self._buffered = buffered
        self._network = network
        self._size_bytes = 0

    def take(self, size_bytes: int, *, is_refusable: bool = True) -> None:
        """Set the bytes counted for the request; small numbers count as nothing.

        Raises RateLimited if the quota is used up.
        """
        self.give_back()
        if size_bytes <= SMALL_BYTES:
            return
        if is_refusable:
            self._buffered.take(self._network, size_bytes)
        else:
            self._buffered.take_unconditionally(self._network, size_bytes)
        self._size_bytes = size_bytes

    def takes_spare(self, size_bytes: int) -> bool:
        """Count bytes as `take` does, but leave half of the quota to requests that have no alternative."""
        self.give_back()
        if size_bytes > SMALL_BYTES and self._buffered.left_bytes - size_bytes < BUFFERED_BYTES_MAX // 2:
            return False
        try:
            self.take(size_bytes)
        except RateLimited:
            return False
        return True

    def give_back(self) -> None:
        """Count nothing any more: the client has taken it, or never will. Doing it again is harmless."""
        if self._size_bytes:
            self._buffered.give_back(self._network, self._size_bytes)
            self._size_bytes = 0


BUFFERED: Final = BufferedBytes()
