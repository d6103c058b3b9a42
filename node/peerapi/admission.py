"""Access control of the peer port.

Every request needs a currently valid certificate of a member of this cluster that the log knows. Only
coordinators may give orders.

The handshake verified the chain once. A connection outlives revocation and expiry, so they are checked each
time. A request that is being answered when the certificate is revoked is cut off.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from ca.errors import Forbidden, Unauthorized
from ca.identity import Role
from ca.tls import Peer, peer_identity
from metadata.model.records import ClusterView
from metadata.protocol.queries import GetView
from metadata.rpc.client import MetadataClient
from metadata.rpc.view import View
from node.peer.client import find_node
from node.uploads.services import NODE
from runtime.clock import now_ms

ORDERS = "/custody/"  # only coordinators may request these

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AdmittedConnections:
    """The connections with a running request of a member, by certificate."""

    def __init__(self) -> None:
        self._answering: dict[str, list[asyncio.Transport]] = {}

    def begin(self, serial: str, transport: asyncio.Transport) -> None:
        """Note that a request with this certificate begins; `end` follows."""
        self._answering.setdefault(serial, []).append(transport)

    def end(self, serial: str, transport: asyncio.Transport) -> None:
        """Note that the request has ended."""
        self._answering[serial].remove(transport)
        if not self._answering[serial]:
            del self._answering[serial]

    def cut_off(self, serials: frozenset[str]) -> None:
        """Abort the connections of these certificates, which were revoked."""
        for serial in serials & self._answering.keys():
            for transport in self._answering[serial]:
                transport.abort()


ADMITTED: Final = web.AppKey("admitted", AdmittedConnections)


def prepare_admission(app: web.Application, view: View) -> None:
    """Admit members only."""
    app[ADMITTED] = AdmittedConnections()
    view.on_revoked = app[ADMITTED].cut_off
    app.middlewares.append(admit_members)


@web.middleware
async def admit_members(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Run the handler for members only.

    Raises Unauthorized; Forbidden for an order of a node; Unavailable if the view is too old to decide.
    """
    api = request.app[NODE].api
    peer = peer_identity(request.transport)
    await check_peer(peer, api.metadata, api.view, now_ms())
    if request.path.startswith(ORDERS) and peer.identity.role is not Role.COORDINATOR:
        raise Forbidden("Only coordinators may do this.")
    transport = request.transport
    if transport is None:
        raise Unauthorized("the connection is gone")
    admitted = request.app[ADMITTED]
    admitted.begin(peer.serial, transport)
    try:
        return await handler(request)
    finally:
        admitted.end(peer.serial, transport)


async def check_peer(peer: Peer, metadata: MetadataClient, view: View, at_ms: int) -> None:
    """Raise Unauthorized unless `peer` is a member of our cluster now.

    Raises Unavailable if the view is too old.
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
    if identity.role is Role.NODE and not await _is_issued(peer, metadata, view):
        raise Unauthorized("a certificate that was not issued by this cluster")


async def _is_issued(peer: Peer, metadata: MetadataClient, view: View) -> bool:
    """Return whether the log knows the certificate. Asks for one that is newer than the view."""
    node_id = peer.identity.id
    if view.is_issued(node_id, peer.serial):
        return True
    newest = await metadata.read(GetView(), ClusterView)
    return peer.serial in newest.node_serials.get(node_id, ())
