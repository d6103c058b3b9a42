"""What the handlers of the metadata API work with; each process makes it once at start."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

from coordinator.admin.bundles import Bundles
from coordinator.http.rate_limits import RateLimits
from coordinator.rpc.client import MetadataClient
from coordinator.rpc.view import View
from coordinator.runtime.audit import AuditLog


@dataclass(frozen=True, slots=True)
class ApiServices:
    """What the handlers use of their process.

    `public_url`: `https://HOST:PORT` of a node's client port, by node id. `readiness` is the status that
    /readyz answers; it raises Unavailable, whose details say what is missing, while this process cannot
    serve. `exposition`: the text of /metrics and its content type, for what a scrape accepts, where it
    contains more than this process's own registry. `bundles`: of a coordinator, what it hands to a machine
    that becomes another.
    """

    metadata: MetadataClient
    view: View
    audit: AuditLog
    public_url: Callable[[str], str]
    readiness: Callable[[], Awaitable[str]]
    exposition: Callable[[str], Awaitable[tuple[bytes, str]]] | None = None
    bundles: Bundles | None = None
    rates: RateLimits = field(default_factory=RateLimits)


API = web.AppKey("api", ApiServices)
