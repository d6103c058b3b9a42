"""Nodes as far as their peer ports go: real TLS between listeners in one process, no coordinators."""

import asyncio
import dataclasses
import hashlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry

from api.context import ApiServices
from ca.certificates import Authority
from ca.identity import Identity, Role
from ca.keys import new_key
from ca.tls import Credential
from metadata.model.records import CoordinatorRecord
from metadata.protocol.calls import HeartbeatCall
from metadata.rpc.client import MetadataClient
from metadata.rpc.tls_contexts import MemberContexts
from metadata.rpc.view import View
from node.base.metrics import NodeMetrics
from node.base.record_cache import RecordCache
from node.content.sources import read_anywhere
from node.custody.context import CustodyContext
from node.custody.custody import Custody
from node.diskio.executor import DiskWorkers
from node.peer.client import PeerClient, pieces
from node.peer.fetch import Fetches
from node.peer.pulls import Pulls
from node.peer.rate_budget import Budget
from node.peer.request_body import Piece
from node.peerapi.admission import prepare_admission
from node.peerapi.blobs import transfer_routes
from node.peerapi.upload_copies import upload_copy_routes
from node.peerapi.uploads import following_routes, prepare_following
from node.sending.splice import Flow
from node.staging.upload_store import UploadStore
from node.storage.blobs import BlobStore
from node.storage.partial_store import PartialStore
from node.uploads.replicate import Replication
from node.uploads.services import NodeServices, provide
from node.uploads.upload_copies import UploadCopies
from node.uploads.write_locks import UploadLocks
from runtime.audit import AuditLog
from runtime.background import WorkState
from tests.unit.node_records import node_record
from tests.unit.state import cluster_view
from web.app import Listener, new_application, serve

CLUSTER = "lab"
CONTENT = os.urandom(9_000_000)  # three segments, the last one short
SHA256 = hashlib.sha256(CONTENT).hexdigest()
COORDINATORS = [
    CoordinatorRecord(coordinator_id="c1", address="127.0.0.1", peer_port=1, api_port=1)  # nobody is there
]


@dataclasses.dataclass
class Node:
    """A node as far as its peer port goes."""

    services: NodeServices
    contexts: MemberContexts
    registry: CollectorRegistry
    serial: str
    listener: Listener
    directory: Path

    def blob_path(self) -> Path:
        return self.directory / "blobs" / SHA256[:2] / SHA256[2:4] / SHA256

    def store(self, content: bytes = CONTENT) -> None:
        with self.services.blobs.receive(hashlib.sha256(content).hexdigest(), len(content)) as writer:
            writer.write(content)
            writer.finish()

    def damage(self, offset: int) -> None:
        self.blob_path().chmod(0o600)
        with self.blob_path().open("r+b") as file:
            file.seek(offset)
            file.write(b"rotten")


def signed_in(identity: Identity, directory: Path, authority: Authority) -> tuple[MemberContexts, str]:
    """With a certificate that lies there, and its serial number."""
    key = new_key()
    leaf = authority.sign_leaf(key.public_key(), identity, "127.0.0.1", now=datetime.now(UTC))
    credential = Credential(directory / "credential.pem", authority.root_pem)
    credential.write(key, leaf.pem)
    return MemberContexts(credential, identity), leaf.serial


@asynccontextmanager
async def running_node(
    node_id: str, directory: Path, authority: Authority, log: MetadataClient | None = None
) -> AsyncIterator[Node]:
    """`log`: with it the node keeps its replicas as well."""
    identity = Identity(CLUSTER, Role.NODE, node_id)
    directory.mkdir()
    contexts, serial = signed_in(identity, directory, authority)
    disk, blobs = DiskWorkers(), BlobStore(directory)
    metadata = log or MetadataClient(identity, COORDINATORS, contexts.client)
    view = View(metadata, lambda: HeartbeatCall(0, 0, 0))
    peers, partials = PeerClient(contexts.client, metadata, view), PartialStore(blobs)
    metrics = NodeMetrics(registry := CollectorRegistry())
    replication = Replication(
        node_id=node_id, metadata=metadata, view=view, blobs=blobs, peers=peers, disk=disk, metrics=metrics
    )
    api = ApiServices(
        metadata=metadata,
        view=view,
        audit=AuditLog(directory / "audit"),
        node_url=lambda name: name,
        readiness=_always_ready,
        work=_no_work,
    )
    fetches = Fetches(
        node_id=node_id, blobs=blobs, partials=partials, peers=peers, disk=disk, metrics=metrics, mark=_mark
    )
    uploads, pulls, locks = UploadStore(blobs), Pulls(fetches, blobs, disk, None), UploadLocks()
    copies = UploadCopies(node_id, uploads, locks, peers, disk, metrics, pace=Budget().take)
    means = CustodyContext(node_id, metadata, view, blobs, disk, metrics, api.audit, Budget())
    services = NodeServices(
        node_id,
        api,
        blobs,
        uploads,
        peers,
        replication,
        disk,
        metrics,
        RecordCache(metadata, metrics),
        locks,
        fetches=fetches,
        pulls=pulls,
        copies=copies,
        custody=None if log is None else Custody(means, directory / "scrub.json", peers),
    )
    await peers.start()
    app = peer_application(services)
    listener = await serve(app, host="127.0.0.1", port=0, ssl_context=contexts.peer.listening, peer=True)
    try:
        yield Node(services, contexts, registry, serial, listener, directory)
    finally:
        await pulls.close()
        await copies.close()
        await services.prefixes.close()
        await services.replication.small_copies.close()
        await peers.close()
        await listener.close()
        disk.close()
        blobs.close()
        api.audit.close()


def peer_application(services: NodeServices) -> web.Application:
    """What a node answers on its peer port, but for what needs coordinators."""
    routes = [*transfer_routes(), *following_routes(), *upload_copy_routes()]
    app = new_application(routes, component="node")
    provide(app, services)
    prepare_following(app)
    prepare_admission(app, services.api.view)
    return app


def introduce(
    nodes: list[Node],
    *,
    revoked: tuple[str, ...] = (),
    ports: Mapping[str, int] | None = None,
    known: list[Node] | None = None,
    issued: Mapping[str, list[str]] | None = None,
    token_keys: Sequence[dict[str, str]] = (),
) -> None:
    """What the coordinators would tell every node: `known`, all of them by default.

    `ports`: of peers that are not where they listen. `issued`: by node, the certificates that the log knows,
    by default those that they have. `token_keys`: of those who sign the tokens of users.
    """
    records = [
        node_record(
            node.services.node_id,
            address="127.0.0.1",
            api_port=1,
            peer_port=(ports or {}).get(node.services.node_id, node.listener.port),
        )
        for node in (nodes if known is None else known)
    ]
    for node in nodes:
        view = node.services.api.view
        current = cluster_view(
            CLUSTER,
            coordinators=COORDINATORS,
            nodes=records,
            replicas=3,
            write_quorum=2,
            revoked_serials=list(revoked),
        )
        serials = {each.services.node_id: [each.serial] for each in nodes} if issued is None else dict(issued)
        current = msgspec.structs.replace(current, user_token_keys=list(token_keys), node_serials=serials)
        view._adopt(current)
        view._confirmed_at = view._leader_confirmed_at = time.monotonic() + 60


Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter, asyncio.Event], Awaitable[None]]


@asynccontextmanager
async def impostor(node: Node, answer: Answering) -> AsyncIterator[int]:
    """A peer with the node's certificate that answers each connection so, then closes it; its port.

    The event tells that the test is over.
    """
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(reader, writer, over)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=node.contexts.peer.listening)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        over.set()
        server.close()
        await server.wait_closed()


async def get(node: Node, source: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    async with node.services.peers.request(source, "GET", f"/blobs/{SHA256}", headers=headers) as answer:
        return answer.status, b"".join([piece async for piece in pieces(source, answer)])


async def download(node: Node, replicas: list[str], start: int = 0, stop: int = len(CONTENT)) -> bytes:
    async with aclosing(read_anywhere(node.services, SHA256, replicas, start, stop)) as reading:
        return await taken(reading)


async def taken(body: AsyncIterator[Piece | Flow]) -> bytes:
    """All of it, by one who always wants more at once."""
    found = bytearray()

    def take(data: Piece | memoryview) -> bool:
        found.extend(data)
        return True

    async for piece in body:
        if isinstance(piece, Flow):
            await piece.pour(take, _room)
        else:
            take(piece)
    return bytes(found)


async def _room() -> None:
    raise AssertionError("there is always room")


def _mark() -> AbstractAsyncContextManager[None]:
    return nullcontext()


async def _no_work() -> dict[int, list[WorkState] | None]:
    return {}


async def _always_ready() -> str:
    return "ready"
