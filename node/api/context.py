"""What the handlers of the metadata API work with; each process makes it once at start."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

from coordinator.http.rate_limits import RateLimits
from coordinator.rpc.client import MetadataClient
from coordinator.rpc.view import View
from coordinator.runtime.audit import AuditLog


@dataclass(frozen=True, slots=True)
class ApiServices:
    """One process. `public_url`: `https://HOST:PORT` of a node's client port, by node id.

    `readiness` is the status that /readyz tells; it raises Unavailable, whose details say what is missing,
    while this process cannot serve. `exposition`: the text of /metrics and its content type, for what a
    scrape accepts, where more than this process's own registry is to be told.
    """

    metadata: MetadataClient
    view: View
    audit: AuditLog
    public_url: Callable[[str], str]
    readiness: Callable[[], Awaitable[str]]
    exposition: Callable[[str], Awaitable[tuple[bytes, str]]] | None = None
    rates: RateLimits = field(default_factory=RateLimits)


API = web.AppKey("api", ApiServices)
