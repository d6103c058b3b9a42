"""The CORS policy: which pages of other origins may read responses (Fetch standard, CORS).

A page's script sends its token in a header of its own, so browsers need no credentials such as cookies, which
do not exist here. Members of the cluster are such origins too, because the console's page continues with
another member if its own fails. Pure: no I/O here.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from aiohttp import hdrs

from ca.errors import InvalidRequest
from web.forwarded import HOST

OPTION: Final = "--cors-origin"
ANY: Final = "*"
ORIGINS_MAX: Final = 64
PREFLIGHT_S: Final = 7200  # browsers cache the answer to a preflight at most this long
METHODS: Final = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
# Headers of API and tus requests, in addition to those that browsers allow every page to send.
SENT: Final = (
    "Authorization, Content-Digest, Content-Range, Content-Type, Digest, Idempotency-Key, If-Match,"
    " If-Modified-Since, If-None-Match, If-Range, If-Unmodified-Since, Prefer, Range, Repr-Digest,"
    " Tus-Resumable, Upload-Checksum, Upload-Concat, Upload-Defer-Length, Upload-Length,"
    " Upload-Metadata, Upload-Offset, X-HTTP-Method-Override, X-Request-Id, X-Requested-With"
)
# Headers of responses that a page may read, in addition to those that browsers always allow.
READ: Final = (
    "Accept-Ranges, Allow, Content-Disposition, Content-Encoding, Content-Length, Content-Location,"
    " Content-Range, Date, Deprecation, ETag, Link, Link-Expires, Location, Preference-Applied, Repr-Digest,"
    " Retry-After, Shared-By, Sunset, Tus-Checksum-Algorithm, Tus-Extension, Tus-Max-Size, Tus-Resumable,"
    " Tus-Version, Upload-Concat, Upload-Defer-Length, Upload-Expires, Upload-Length, Upload-Metadata,"
    " Upload-Offset, Upload-Prefix-Digest, WWW-Authenticate, X-Request-Id"
)
_ORIGIN: Final = re.compile(rf"(https?)://({HOST})")
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True)
class ConsoleMembers:
    """The origins of members by their own addresses, as browsers write them: each serves the console."""

    nodes: tuple[str, ...] = ()
    coordinators: tuple[str, ...] = ()

    def __contains__(self, origin: str) -> bool:
        return origin in self.nodes or origin in self.coordinators


class CorsPolicy:
    """The origins whose pages may read answers; by default none."""

    def __init__(
        self, origins: Collection[str] = (), *, members: Callable[[], ConsoleMembers] | None = None
    ) -> None:
        """Allow `origins`, as browsers write them; `*` is every one.

        `members` returns the present members.
        """
        self._origins = frozenset(origins)
        self._allows_any = ANY in self._origins
        self._members = members

    def with_members(self, members: Callable[[], ConsoleMembers]) -> "CorsPolicy":
        """Return this policy with the current members of the cluster as additional origins."""
        return CorsPolicy(self._origins, members=members)

    @property
    def varies(self) -> bool:
        """Whether answers depend on the origin of who asks, so that caches have to look at it."""
        return not self._allows_any and (bool(self._origins) or self._members is not None)

    def headers(self, method: str, asked: Mapping[str, str]) -> dict[str, str]:
        """The headers that the answer to a request of this method with these headers gets for it."""
        if not self.varies and not self._allows_any:
            return {}
        told: dict[str, str] = {hdrs.VARY: hdrs.ORIGIN} if self.varies else {}
        origin = asked.get(hdrs.ORIGIN)
        if origin is None or not self._allows(origin):
            return told
        told[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = ANY if self._allows_any else origin
        if method == hdrs.METH_OPTIONS and hdrs.ACCESS_CONTROL_REQUEST_METHOD in asked:
            told[hdrs.ACCESS_CONTROL_ALLOW_METHODS] = METHODS
            told[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = SENT
            told[hdrs.ACCESS_CONTROL_MAX_AGE] = str(PREFLIGHT_S)
        else:
            told[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = READ
        return told

    def _allows(self, origin: str) -> bool:
        if self._allows_any or origin in self._origins:
            return True
        return self._members is not None and origin in self._members()


def join_vary(own: str, added: str) -> str:
    """Two values of `Vary` as one."""
    named = {name.strip().lower() for name in own.split(",")}
    return own if added.lower() in named or ANY in named else f"{own}, {added}"


def parse_origins(texts: Collection[str]) -> CorsPolicy:
    """Origins as an operator writes them. Raises InvalidRequest."""
    if len(texts) > ORIGINS_MAX:
        raise InvalidRequest(f"{OPTION}: at most {ORIGINS_MAX} origins are allowed.")
    return CorsPolicy([_origin(text) for text in texts])


def _origin(text: str) -> str:
    """Normalise an origin as browsers write it: in lower case, without the default port."""
    found = None if text == ANY else _ORIGIN.fullmatch(text.lower())
    if text != ANY and found is None:
        raise InvalidRequest(
            f"{OPTION}: {text!r} is not an origin. Expected https://HOST or https://HOST:PORT without "
            "a path, and names beyond ASCII in their xn-- form."
        )
    return ANY if found is None else f"{found[1]}://{found[2].removesuffix(_DEFAULT_PORTS[found[1]])}"


def origins_of(addresses: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """`https://HOST` or `https://HOST:PORT` of these, as a browser writes them."""
    hosts = ((f"[{host}]" if ":" in host else host.lower(), port) for host, port in addresses)
    return tuple(f"https://{host}:{port}".removesuffix(_DEFAULT_PORTS["https"]) for host, port in hosts)
