"""The objects that handlers of the metadata API work with. Shared by all of them.

Each process creates them once.

Tested by tests/api/test_authorization.py.
"""

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
from web.web_access import WebAccess, is_from_proxy


class BundleSource(Protocol):
    """Create bundles for machines that join as coordinators.

    A Protocol, as its one class is in `coordinator.admin.restore`, which may import the API, and the API
    nothing of a coordinator.
    """

    async def require_of_cluster_key(self, token_id: str, secret: str) -> None:
        """Raises Unauthorized for a token that has ended, or was made with rights in the API alone."""

    async def new(self) -> bytes:
        """Return a bundle of the current state. Raises InvalidRequest if no machine could start with it."""


@dataclass(frozen=True, slots=True)
class ApiServices:
    """The services of their process that handlers use.

    `node_url` returns `https://HOST:PORT` of a node's client port by node id. `readiness` is the status that
    /readyz returns; it raises Unavailable with the reason while this process cannot serve. `work` returns the
    background work of this member by worker process, with None for a process that does not answer.
    `exposition` returns the text of /metrics and its content type for an Accept header, if it contains more
    than the registry of this process. `bundles` creates the bundles of new coordinators, on a coordinator.
    `authority` is `HOST:PORT` of this process's own client port; `access` describes how people reach it.
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
        """Return the beginning of a public address: of any node, if there is no public one."""
        return self.access.shared_url(request) or self.node_url("")

    def holder_url(self, request: web.Request, node_id: str) -> str:
        """Return the URL of a node for the sender of this request.

        For a client that can reach nodes this is the node's own address; otherwise it is the public one, as
        every node forwards requests.
        """
        return self.node_url(node_id) if self.reaches_nodes(request) else self.access.shared_url(request)

    def reaches_nodes(self, request: web.Request) -> bool:
        """Return whether the sender of a request should receive addresses of nodes.

        Without a public address every client does. With one, only a client that used this process's own
        address does: such a client reaches members and trusts the cluster's root, which has not issued the
        public certificate.
        """
        asked = request.headers.get(hdrs.HOST, "").lower()
        is_own = asked == self.authority and not is_from_proxy(request)
        return is_own or not self.access.shared_url(request)


# Puts a final upload together, and answers its creation; a process without content has none.
Concatenate = Callable[[web.Request, Caller, UploadRecord], Awaitable[web.StreamResponse]]

API = web.AppKey("api", ApiServices)
CONCATENATE = web.AppKey[Concatenate]("concatenate")
