"""What the handlers of the metadata API work with; each process makes it once at start."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

from coordinator.http.rate_limits import RateLimits
from coordinator.model.records import Caller, UploadRecord
from coordinator.rpc.client import MetadataClient
from coordinator.rpc.view import View
from coordinator.runtime.audit import AuditLog


@dataclass(frozen=True, slots=True)
class ApiServices:
    """What the handlers use of their process.

    `public_url`: `https://HOST:PORT` of a node's client port, by node id. `readiness` is the status that
    /readyz answers; it raises Unavailable, whose details say what is missing, while this process cannot
    serve. `exposition`: the text of /metrics and its content type, for what a scrape accepts, where it
    contains more than this process's own registry.
    """

    metadata: MetadataClient
    view: View
    audit: AuditLog
    public_url: Callable[[str], str]
    readiness: Callable[[], Awaitable[str]]
    exposition: Callable[[str], Awaitable[tuple[bytes, str]]] | None = None
    rates: RateLimits = field(default_factory=RateLimits)


# Puts a final upload together, and answers its creation; a process without content has none.
Concatenate = Callable[[web.Request, Caller, UploadRecord], Awaitable[web.StreamResponse]]

API = web.AppKey("api", ApiServices)
CONCATENATE = web.AppKey[Concatenate]("concatenate")
