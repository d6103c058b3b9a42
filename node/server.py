"""A node process.

Opens its disk, connects to the coordinators, serves the client port and the peer port.

It runs until SIGTERM or SIGINT, then lets requests end for DRAIN_S and returns. Every task belongs to one
group: if one of them fails, the process ends and says why.
"""

import asyncio
import ctypes
import ipaddress
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from aiohttp import web

from ca.errors import FilestoreError, InvalidRequest, Unavailable
from ca.identity import Identity, Role
from coordinator import logs
from coordinator.audit import AuditLog
from coordinator.client import MetadataClient
from coordinator.commands import AnnounceNode
from coordinator.contexts import MemberContexts
from coordinator.lifetime import raise_descriptor_limit, stop_signal
from coordinator.metrics import Metrics
from coordinator.records import NodeRecord
from coordinator.roster import read_known
from coordinator.view import View
from coordinator.web import Listener, new_application, serve
from node.admission import admit_members
from node.api.routes import METADATA, client_routes
from node.api.services import API, ApiServices
from node.blobs import BlobStore
from node.config import NodeConfig, NodeFiles
from node.content.locks import UploadLocks
from node.content.routes import OPERATIONS, content_routes
from node.disk import DiskWorkers
from node.metrics import NodeMetrics
from node.peers import PeerClient
from node.record_cache import RecordCache
from node.renewal import keep_renewed
from node.replication import Replication
from node.services import NODE, NodeServices
from node.sweep import keep_swept
from node.transfer import transfer_routes
from node.uploads import UploadStore
from node.watch import DiskWatch

DRAIN_S = 20.0
ANNOUNCE_RETRY_S = 1.0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_BUFFER_BYTES_MAX = 32 << 20  # the largest mmap threshold that glibc takes; a larger value changes nothing

_log = logging.getLogger(__name__)


async def run_node(data: Path, *, http: str | None = None) -> None:
    """Run until SIGTERM or SIGINT. Raises NotJoined, DataInUse, or what made it impossible to go on.

    `http` is `127.0.0.1:PORT`: an extra plain listener for a proxy on this host.
    """
    logs.setup("node")
    raise_descriptor_limit()
    keep_large_buffers()
    plain = None if http is None else loopback_listener(http)
    files = NodeFiles(data)
    config = files.read_config()
    with files.locked():
        await _run(files, config, plain)
    _log.info("stopped")


async def _run(files: NodeFiles, config: NodeConfig, plain: tuple[str, int] | None) -> None:
    contexts, metrics = MemberContexts(files.credential()), Metrics("node")
    async with _open_node(files, config, contexts, metrics) as (services, watch):
        identity = Identity(config.cluster, Role.NODE, config.id)
        metadata, view = services.api.metadata, services.api.view
        async with asyncio.TaskGroup() as group:
            owned = [
                group.create_task(metadata.run(), name="metadata client"),
                group.create_task(view.run(), name="view"),
                group.create_task(watch.run(), name="disk watch"),
                group.create_task(services.records.run(), name="record cache"),
                group.create_task(_announce(config, services), name="announcement"),
                group.create_task(keep_renewed(metadata, contexts, identity, config.address), name="renewal"),
                group.create_task(keep_swept(services), name="sweep"),
            ]
            await _serve(config, contexts, services, metrics, plain)
            await services.records.leave()
            for task in owned:
                task.cancel()


def loopback_listener(text: str) -> tuple[str, int]:
    """Host and port of a plain listener. Raises InvalidRequest for anything but a loopback address."""
    host, _, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        number = int(port)
    except ValueError:
        raise InvalidRequest("--http: must be ADDRESS:PORT.") from None
    if not address.is_loopback or not 0 <= number <= 65535:
        raise InvalidRequest("--http: only a loopback address may serve without TLS.")
    return str(address), number


def keep_large_buffers() -> None:
    """Let glibc reuse the large blocks that bodies pass through.

    Each would else be mapped and faulted in anew.

    Measured at +40 % on TLS uploads. Where the C library has no mallopt there is nothing to set.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
        if not mallopt(option, _BUFFER_BYTES_MAX):
            _log.warning("the C library refuses a larger block size", extra={"option": option})


@asynccontextmanager
async def _open_node(
    files: NodeFiles, config: NodeConfig, contexts: MemberContexts, metrics: Metrics
) -> AsyncIterator[tuple[NodeServices, DiskWatch]]:
    """Everything that handlers need, closed again in the order that lets running disk work end first."""
    disk, locks = DiskWorkers(), UploadLocks()
    blobs = await disk.run(BlobStore, files.data)
    uploads = UploadStore(blobs)
    watch = DiskWatch(disk, blobs, locks)
    identity = Identity(config.cluster, Role.NODE, config.id)
    coordinators = await disk.run(read_known, files.known, config.coordinators)
    metadata = MetadataClient(identity, coordinators, contexts.client)
    view = View(metadata, watch.heartbeat, known=files.known)
    peers = PeerClient(contexts.client, metadata, view)
    counts = _node_metrics(metrics, watch, locks)
    replication = Replication(
        node_id=config.id, metadata=metadata, view=view, blobs=blobs, peers=peers, disk=disk, metrics=counts
    )
    api = ApiServices(
        metadata=metadata,
        view=view,
        audit=AuditLog(files.audit),
        public_url=lambda node_id: public_url(view, node_id, own=config),
        readiness=lambda: _readiness(config, view, watch),
    )
    records = RecordCache(metadata, counts)
    services = NodeServices(config.id, api, blobs, uploads, peers, replication, disk, counts, records, locks)
    await peers.start()
    try:
        yield services, watch
    finally:
        await peers.close()
        await asyncio.to_thread(disk.close)
        uploads.close()
        blobs.close()
        api.audit.close()


def _node_metrics(metrics: Metrics, watch: DiskWatch, locks: UploadLocks) -> NodeMetrics:
    counts = NodeMetrics(metrics.registry)
    counts.uploads_in_progress.set_function(lambda: len(locks))
    counts.disk_free_bytes.set_function(lambda: watch.free_bytes)
    counts.disk_size_bytes.set_function(lambda: watch.total_bytes)
    return counts


async def _readiness(config: NodeConfig, view: View, watch: DiskWatch) -> str:
    """`ready`; raises Unavailable while this node should get no requests."""
    view.require_fresh()
    if not _is_announced(config, view):
        raise Unavailable("The cluster does not know yet where peers reach this node.")
    if not watch.is_writable():
        raise Unavailable("The disk of this node takes no bytes.")
    return "ready"


def public_url(view: View, node_id: str, *, own: NodeConfig | None = None) -> str:
    """`https://HOST:PORT` of a node's client port.

    For a node that the view does not know yet: that of this process, if it is a node, else of any that has
    run. Each node passes on what another one holds, and finds a new peer without the view. Raises
    Unavailable.
    """
    serving = [node for node in view.current.nodes if node.peer_port and not node.draining]
    node: NodeRecord | NodeConfig | None = view.node(node_id) or own or next(iter(serving), None)
    if node is None:
        raise Unavailable("The address of no node is known here yet.")
    host = f"[{node.address}]" if ":" in node.address else node.address
    return f"https://{host}:{node.api_port}"


async def _serve(
    config: NodeConfig,
    contexts: MemberContexts,
    services: NodeServices,
    metrics: Metrics,
    plain: tuple[str, int] | None,
) -> None:
    async with AsyncExitStack() as listening:
        listeners: list[Listener] = []
        peer_app = _peer_application(services)
        listeners.append(
            await serve(
                peer_app,
                host=config.address,
                port=config.peer_port,
                ssl_context=contexts.peer.listening,
                peer=True,
            )
        )
        listening.push_async_callback(_close_all, listeners)
        listeners.append(
            await serve(
                _client_application(services, metrics),
                host=config.address,
                port=config.api_port,
                ssl_context=contexts.api.listening,
            )
        )
        if plain is not None:
            app = _client_application(services, metrics)
            listeners.append(await serve(app, host=plain[0], port=plain[1], ssl_context=None))
        with stop_signal() as stop:
            _log.info(
                "node ready",
                extra={"node": config.id, "api_port": listeners[1].port, "peer_port": listeners[0].port},
            )
            await stop.wait()
        _log.info("stopping")


async def _close_all(listeners: list[Listener]) -> None:
    """Together: an upload that ends while we drain may need our own peer port through another node."""
    await asyncio.gather(*(listener.close(DRAIN_S) for listener in listeners))


def _client_application(services: NodeServices, metrics: Metrics) -> web.Application:
    routes = client_routes([*METADATA, *OPERATIONS])
    app = new_application(routes, component="node", metrics=metrics)
    app[API], app[NODE] = services.api, services
    return app


def _peer_application(services: NodeServices) -> web.Application:
    app = new_application([*transfer_routes(), *content_routes()], component="node")
    app[API], app[NODE] = services.api, services
    app.middlewares.append(admit_members)
    return app


async def _announce(config: NodeConfig, services: NodeServices) -> None:
    """Tell the cluster where peers reach this node, if it knows otherwise; again until it does."""
    command = AnnounceNode(
        node_id=config.id, peer_port=config.peer_port, zone=config.zone, weight=config.weight
    )
    view = services.api.view
    while True:
        await view.wait_until_fresh()
        if _is_announced(config, view):
            return
        try:
            await services.api.metadata.propose(command, NodeRecord)
            return
        except FilestoreError as error:
            _log.warning("the cluster does not take this node's address", extra={"reason": error.details})
        await asyncio.sleep(ANNOUNCE_RETRY_S)


def _is_announced(config: NodeConfig, view: View) -> bool:
    known = view.node(config.id)
    announced = (config.peer_port, config.zone, config.weight)
    return known is not None and (known.peer_port, known.zone, known.weight) == announced
