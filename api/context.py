"""What the handlers of the metadata API work with. Shared by all of them; a process makes one at start."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import hdrs, web

from metadata.model.records import Caller, UploadRecord
from metadata.rpc.client import MetadataClient
from metadata.rpc.view import View
from runtime.audit import AuditLog
from runtime.background import WorkState
from web.rate_limits import RateLimits
from web.web_access import WebAccess, came_through_proxy


class BundleSource(Protocol):
    """What a coordinator hands to a machine that joins.

    A Protocol, as `coordinator.admin.restore`, which has the one class of this kind, may import the API, and
    the API nothing of a coordinator.
    """

    async def require_of_cluster_key(self, token_id: str, secret: str) -> None:
        """Raises Unauthorized for a token that has ended, or was made with rights in the API alone."""

    async def new(self) -> bytes:
        """A bundle of the present. Raises InvalidRequest when nobody could begin with it."""


@dataclass(frozen=True, slots=True)
class ApiServices:
    """What the handlers use of their process.

    `node_url`: `https://HOST:PORT` of a node's client port, by node id. `readiness` is the status that
    /readyz answers; it raises Unavailable, whose details say what is missing, while this process cannot
    serve. `work`: the background work of this member, by worker process; None of one that does not answer.
    `exposition`: the text of /metrics and its content type, for what a scrape accepts, where it
    contains more than this process's own registry. `bundles`: of a coordinator, what it hands to a machine
    that becomes another. `authority`: `HOST:PORT` of this process's own client port; `access` is how people
    reach it.
    """

    metadata: MetadataClient
    view: View
    audit: AuditLog
    node_url: Callable[[str], str]
    readiness: Callable[[], Awaitable[str]]
    work: Callable[[], Awaitable[dict[int, list[WorkState] | None]]]
    exposition: Callable[[str], Awaitable[tuple[bytes, str]]] | None = None
    bundles: BundleSource | None = None
    rates: RateLimits = field(default_factory=RateLimits)
    access: WebAccess = field(default_factory=WebAccess)
    authority: str = ""

    def link_url(self, request: web.Request) -> str:
        """The beginning of an address that is handed on to others: that of any node, where none is public."""
        return self.access.shared_url(request) or self.node_url("")

    def holder_url(self, request: web.Request, node_id: str) -> str:
        """The beginning of an address at a node, for the sender of this request.

        It is the node's own for whoever reaches nodes; else the public one, as any node passes on to it.
        """
        return self.node_url(node_id) if self.reaches_nodes(request) else self.access.shared_url(request)

    def reaches_nodes(self, request: web.Request) -> bool:
        """Whether the sender of a request is to be told addresses of nodes.

        Without a public address everybody is. With one, who asked this process by its own address: such a
        client reaches members and trusts the root of the cluster, of which the public certificate is not.
        """
        asked = request.headers.get(hdrs.HOST, "").lower()
        is_own = asked == self.authority and not came_through_proxy(request)
        return is_own or not self.access.shared_url(request)


# Puts a final upload together, and answers its creation; a process without content has none.
Concatenate = Callable[[web.Request, Caller, UploadRecord], Awaitable[web.StreamResponse]]

API = web.AppKey("api", ApiServices)
CONCATENATE = web.AppKey[Concatenate]("concatenate")
