"""Who may use the peer port.

Members of this cluster, with a certificate that is good now, on every request; orders only by coordinators.

The handshake proved the chain once; a connection outlives revocation and expiry, so they are looked at each
time.
"""

from collections.abc import Awaitable, Callable

from aiohttp import web

from ca.errors import Forbidden, Unauthorized
from ca.identity import Role
from ca.tls import Peer, peer_identity
from coordinator.client import MetadataClient
from coordinator.clock import now_ms
from coordinator.view import View
from node.members import find_node
from node.services import NODE

ORDERS = "/custody/"  # what only coordinators ask for

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def admit_members(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Let the handler run for a member only.

    Raises Unauthorized; Forbidden for an order of a node; Unavailable when the view is too old to tell.
    """
    api = request.app[NODE].api
    peer = peer_identity(request.transport)
    await check_peer(peer, api.metadata, api.view, now_ms())
    if request.path.startswith(ORDERS) and peer.identity.role is not Role.COORDINATOR:
        raise Forbidden("Only coordinators give orders.")
    return await handler(request)


async def check_peer(peer: Peer, metadata: MetadataClient, view: View, at_ms: int) -> None:
    """Raises Unauthorized unless `peer` is a member of our cluster now.

    Unavailable when the view is too old.
    """
    current = view.require_fresh()
    identity = peer.identity
    if identity.cluster != current.cluster:
        raise Unauthorized("a certificate of another cluster")
    if peer.not_after_ms <= at_ms:
        raise Unauthorized("the certificate has expired since the handshake")
    if view.is_revoked(peer.serial):
        raise Unauthorized("the certificate was revoked")
    if identity.role is Role.NODE:
        known = await find_node(metadata, view, identity.id) is not None
    else:
        known = any(member.coordinator_id == identity.id for member in current.coordinators)
    if not known:
        raise Unauthorized("not a member of the cluster")
