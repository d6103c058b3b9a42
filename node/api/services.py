"""What the handlers of the metadata API work with; each process makes it once at start."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

from coordinator.audit import AuditLog
from coordinator.client import MetadataClient
from coordinator.rates import RateLimits
from coordinator.view import View


@dataclass(frozen=True, slots=True)
class ApiServices:
    """One process. `public_url`: `https://HOST:PORT` of a node's client port, by node id.

    `check_ready` raises Unavailable, whose details say what is missing, while this process cannot serve;
    without it a fresh view is enough.
    """

    metadata: MetadataClient
    view: View
    audit: AuditLog
    public_url: Callable[[str], str]
    rates: RateLimits = field(default_factory=RateLimits)
    check_ready: Callable[[], Awaitable[None]] | None = None


API = web.AppKey("api", ApiServices)
