"""How often an address may ask, and how slowly a client may be. No I/O here; the clock is handed in.

The table of addresses has a bounded size; what a limit means for the caller is RateLimited or RequestTimeout.

Tested by tests/unit/web/test_request_body.py.
"""

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ca.errors import RateLimited, RequestTimeout

ADDRESSES_MAX: Final = 10_000  # the longest unused goes first; an entry is some 200 bytes
FAILED_AUTHENTICATION_BURST: Final = 20
FAILED_AUTHENTICATION_PER_S: Final = 1.0
JOINS_BURST: Final = 20  # a rack of machines behind one address, or a development cluster on loopback
JOINS_PER_S: Final = 0.2
PUBLIC_TOKENS_BURST: Final = 20  # unknown tokens; a token of 256 bits cannot be guessed
PUBLIC_TOKENS_PER_S: Final = 1.0
IPV6_PREFIX_BITS: Final = 64  # one subscriber holds a /64 and can take any address in it
BODY_BYTES_PER_S_MIN: Final = 1024  # slower than the slowest modem is not a client but an attack


@dataclass(frozen=True, slots=True)
class RequestTimeouts:
    """How long a listener waits for a client, in seconds. Tests shorten it."""

    headers_s: float = 10.0
    keep_alive_s: float = 75.0  # longer than the minute after which proxies drop an idle connection
    body_stall_s: float = 30.0
    json_body_s: float = 30.0
    answer_stall_s: float = 60.0  # the client must accept some of a response within this time
    linger_s: float = 5.0  # for what a client still sends after it was refused, so that it can read why


class BodyPace:
    """The minimum rate of a body, in every `window_s` seconds spent waiting for it."""

    def __init__(self, window_s: float, *, bytes_per_s_min: float = BODY_BYTES_PER_S_MIN) -> None:
        self._window_s = window_s
        self._least_bytes = bytes_per_s_min * window_s
        self._waited_s = 0.0
        self._received_bytes = 0

    @property
    def left_s(self) -> float:
        """How long the next wait may take before `note_arrival` decides."""
        return max(0.0, self._window_s - self._waited_s)

    def note_arrival(self, size_bytes: int, *, waited_s: float) -> None:
        """Account for one wait. Raises RequestTimeout when its window ends with too few bytes."""
        self._waited_s += waited_s
        self._received_bytes += size_bytes
        if self._waited_s >= self._window_s:
            if self._received_bytes < self._least_bytes:
                raise RequestTimeout("The body arrived too slowly.")
            self._waited_s, self._received_bytes = 0.0, 0


class TokenBuckets:
    """A bucket per address: `burst` at once, then `per_s`. Addresses are remembered up to `addresses_max`."""

    def __init__(
        self,
        *,
        burst: int,
        per_s: float,
        addresses_max: int = ADDRESSES_MAX,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        assert burst >= 1
        assert per_s > 0
        self._burst = burst
        self._per_s = per_s
        self._addresses_max = addresses_max
        self._clock_s = clock_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens left, and when

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, address: str) -> None:
        """Take one token of this address. Raises RateLimited, with the seconds until there is one."""
        wait_s = self.try_take(address)
        if wait_s > 0:
            raise RateLimited(
                "Too many requests of this kind from this address. Wait before the next one.",
                retry_after_s=math.ceil(wait_s),
            )

    def try_take(self, address: str) -> float:
        """0.0 when a token was there and is now taken, else the seconds until there is one."""
        key = network_of(address)
        now_s = self._clock_s()
        tokens, at_s = self._buckets.pop(key, (float(self._burst), now_s))
        tokens = min(float(self._burst), tokens + max(0.0, now_s - at_s) * self._per_s)
        taken = tokens >= 1.0
        self._buckets[key] = (tokens - 1.0 if taken else tokens, now_s)
        if len(self._buckets) > self._addresses_max:
            self._buckets.popitem(last=False)
        return 0.0 if taken else (1.0 - tokens) / self._per_s


class RateLimits:
    """The limits of one process: failed authentications, attempts to join, public tokens that failed."""

    def __init__(self) -> None:
        self.failed_authentication = TokenBuckets(
            burst=FAILED_AUTHENTICATION_BURST, per_s=FAILED_AUTHENTICATION_PER_S
        )
        self.joins = TokenBuckets(burst=JOINS_BURST, per_s=JOINS_PER_S)
        self.public_tokens = TokenBuckets(burst=PUBLIC_TOKENS_BURST, per_s=PUBLIC_TOKENS_PER_S)


def network_of(address: str) -> str:
    """Return the network that counts as one address: an IPv4 address, or the /64 of an IPv6 one."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((parsed, IPV6_PREFIX_BITS), strict=False))
