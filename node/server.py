"""A node process: the only one, or the first of several workers (`node/workers/supervisor.py`).

It opens its disk, connects to the coordinators, and serves the client port and the peer port.

It runs until SIGTERM or SIGINT, then waits up to DRAIN_S for requests to end, and returns. Every task belongs
to one group: if one of them fails, the process logs why and ends.
"""

import asyncio
import ctypes
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from api.context import ApiServices
from ca.errors import FilestoreError, InvalidRequest, Unavailable
from ca.hostnames import authority_of
from ca.secretfiles import read_secret
from ca.tls import UnusableCredential
from ca.webcertificate import WebCertificate
from metadata.model.rules import SMALL_BLOBS_ARE_PACKED
from metadata.rpc.client import MetadataClient
from metadata.rpc.member_metrics import MemberMetrics
from metadata.rpc.roster import read_known
from metadata.rpc.tls_contexts import MemberContexts
from metadata.rpc.view import View, node_url, url_of
from node.base.config import NodeConfig, NodeFiles
from node.base.instance import Start, begin
from node.base.metrics import NodeMetrics
from node.base.record_cache import RecordCache
from node.custody.context import CustodyContext
from node.custody.custody import Custody
from node.diskio.executor import DISK_THREAD, DiskWorkers
from node.listeners import Ports
from node.membership.announcement import Announcement
from node.membership.disk_monitor import DiskWatch
from node.membership.renewal import keep_renewed
from node.peer.client import PeerClient
from node.peer.fetch import Fetches
from node.peer.pulls import Pulls
from node.peer.rate_budget import Budget
from node.peer.reachability import Reach
from node.staging.upload_store import UploadStore
from node.storage.blobs import BlobStore
from node.storage.partial_store import PartialStore
from node.uploads.replicate import Replication
from node.uploads.services import NodeServices
from node.uploads.sweep import keep_swept
from node.uploads.upload_copies import UploadCopies
from node.uploads.write_locks import UploadLocks
from node.workers.siblings import Siblings
from node.workers.stats import WorkerNumbers
from node.workers.supervisor import END_TIMEOUT_S, WorkerProcesses
from runtime import logs
from runtime.audit import ROTATED_HOUSEKEEPING, AuditLog
from runtime.background import Works, WorkState
from runtime.lifetime import (
    KNOWN_S,
    first_in,
    raise_descriptor_limit,
    stop_signal,
    wait_for_first,
)
from runtime.logs import ReadLevel
from runtime.metrics import Metrics
from runtime.service_manager import ServiceManager, keep_informed, on_hangup
from web.listener import CannotListen, loopback_listener
from web.web_access import WebAccess, parse_web_access
from web.web_options import NO_WEB_OPTIONS, WebOptions

DRAIN_S = 20.0
DISK_RETRY_S = 5.0  # between two looks at a disk that takes no bytes
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_BUFFER_BYTES_MAX = 32 << 20  # the largest mmap threshold that glibc takes; a larger value changes nothing

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenNode:
    """The services and the background work of a node process."""

    services: NodeServices
    watch: DiskWatch
    numbers: WorkerNumbers
    reach: Reach
    announcement: Announcement

    works: Works

    def start_work(self) -> None:
        """Start the background work of every process of a node. `works` was entered."""
        self.works.start("metadata client", self.services.api.metadata.run())
        self.works.start("view", self.services.api.view.run())
        self.works.start("disk watch", self.watch.run())
        self.works.start("record cache", self.services.records.run())
        self.works.start("sweep", keep_swept(self.services))


async def run_node(
    data: Path,
    *,
    http: str | None = None,
    workers: int = 1,
    web: WebOptions = NO_WEB_OPTIONS,
    read_level: ReadLevel = logs.usual_level,
) -> None:
    """Run until SIGTERM or SIGINT.

    Raises NotJoined, DataInUse, UnsafeSecretFile, or the error that stopped the process. `http` is
    `127.0.0.1:PORT`: an extra plain listener for a proxy on this host. `workers`: how many processes share
    the ports for clients; this one is the first of them. On SIGHUP, all reload the certificates on disk and
    the log level that `read_level` returns.
    """
    logs.setup("node", read_level())
    manager = ServiceManager()
    raise_descriptor_limit()
    keep_large_buffers()
    plain = None if http is None else loopback_listener(http)
    parse_web_access(web)
    files = NodeFiles(data)
    await _until_disk_takes_bytes(files, manager)
    config = files.read_config()
    read_secret(files.credential_path)
    with files.lock_directory() as lock_fd, files.lock_for_workers(DRAIN_S + END_TIMEOUT_S) as lock:
        start = await asyncio.to_thread(begin, files.instance, config.id, lock_fd)
        siblings = Siblings(0, workers, files.run)
        try:
            await _run(files, config, siblings, plain, manager, read_level, lock=lock, start=start, web=web)
        except BaseExceptionGroup as group:
            if (refused := first_in(group, CannotListen)) is not None:
                raise refused from group
            raise
    _log.info("stopped")


async def _until_disk_takes_bytes(files: NodeFiles, manager: ServiceManager) -> None:
    """Wait until the disk can be written: a process that ended instead would only be restarted in a loop."""
    logged = ""
    while trouble := await asyncio.to_thread(_trouble, files, is_waiting=bool(logged)):
        if trouble != logged:
            _log.error("the disk is not writable: the node starts when it is", extra={"reason": trouble})
            manager.show(f"Waits for its disk, which is not writable: {trouble}")
        logged = trouble
        await asyncio.sleep(DISK_RETRY_S)


def _trouble(files: NodeFiles, *, is_waiting: bool) -> str:
    """Return why to wait: while a disk is being repaired, it is not mounted."""
    if is_waiting and not files.config.exists():
        return f"{files.config.name} is missing"
    return files.trouble()


async def _run(
    files: NodeFiles,
    config: NodeConfig,
    siblings: Siblings,
    plain: tuple[str, int] | None,
    manager: ServiceManager,
    read_level: ReadLevel,
    *,
    lock: int,
    start: Start,
    web: WebOptions,
) -> None:
    access, metrics = parse_web_access(web), Metrics("node")
    contexts = MemberContexts(files.credential(), config.identity, web=access.certificate)
    try:
        contexts.credential.require_address(config.address)
    except UnusableCredential as error:
        why = f"node.json: address: {error.details}. To change it, use `node set-address`."
        raise InvalidRequest(why) from error
    async with (
        open_node(files, config, contexts, metrics, siblings, start=start, access=access) as node,
        Ports(config, contexts, node.services, metrics) as ports,
    ):
        await ports.open_local(node.numbers)
        peer_port = await ports.open_peer()
        plain = await ports.bind_clients(plain)
        options = _worker_options(files, plain, web, start)
        processes = WorkerProcesses(siblings.workers, options, lock=lock, registry=metrics.registry)
        async with node.works:
            node.start_work()
            _start_works_of_the_first(config, contexts, node, processes)
            node.works.start("word to the service manager", _keep_informed(manager, node.services))

            def reload() -> None:
                contexts.reload_all()
                processes.set_log_level(logs.reread_level(read_level))
                processes.reload()

            with stop_signal() as stop, on_hangup(reload, manager):
                await wait_for_first(node.announcement.wait_until_done(), stop.wait(), timeout_s=KNOWN_S)
                if not stop.is_set():
                    await ports.open_clients()
                    node.works.start("worker processes", processes.run())
                    facts = {"node": config.id, "api_port": config.api_port, "peer_port": peer_port}
                    _log.info("node ready", extra=facts)
                    manager.ready()
                await stop.wait()
                manager.notify_stopping()
                _log.info("stopping")
                await asyncio.gather(ports.drain(DRAIN_S), processes.drain(DRAIN_S))
                await ports.drain_local()
                # While it can still report to the log how far they are.
                await node.services.concatenations.close()
                await node.services.records.leave()


def _worker_options(
    files: NodeFiles, plain: tuple[str, int] | None, web: WebOptions, start: Start
) -> list[str]:
    options = ["--data", str(files.data), "--web", msgspec.json.encode(web).decode()]
    if plain is not None:
        options += ["--http", f"{plain[0]}:{plain[1]}"]
    return [*options, "--instance", start.instance]


def _start_works_of_the_first(
    config: NodeConfig, contexts: MemberContexts, node: OpenNode, processes: WorkerProcesses
) -> None:
    """Start the background work that only one process of a node does."""
    metadata, start = node.services.api.metadata, node.works.start
    start("announcement", node.announcement.run())
    start("ways to other nodes", node.reach.run())
    if (custody := node.services.custody) is not None:
        start("custody", custody.run())
        start("scrub", custody.scrubber.run())
        start("orphans", custody.orphans.run())
    on_renewed = processes.reload
    start("renewal", keep_renewed(metadata, contexts, config.identity, config.address, on_renewed=on_renewed))
    if node.services.siblings.workers > 1:
        start("numbers of the workers", node.numbers.run(processes.replace))


async def _keep_informed(manager: ServiceManager, services: NodeServices) -> None:
    async def condition() -> str:
        try:
            is_full = await services.api.readiness() == "disk_full"
        except FilestoreError as error:
            return error.details
        return "Its disk is full" if is_full else "Serves"

    disk = services.disk
    await keep_informed(manager, thread_name=DISK_THREAD, take_job=disk.answers, status=condition)


def keep_large_buffers() -> None:
    """Let glibc reuse the large blocks of memory for bodies.

    Otherwise each would be mapped and faulted in again.

    Measured at +40 % on TLS uploads. If the C library has no mallopt, there is nothing to set.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
        if not mallopt(option, _BUFFER_BYTES_MAX):
            _log.warning("the C library rejects a larger block size", extra={"option": option})


@asynccontextmanager
async def open_node(
    files: NodeFiles,
    config: NodeConfig,
    contexts: MemberContexts,
    metrics: Metrics,
    siblings: Siblings,
    *,
    start: Start,
    access: WebAccess,
) -> AsyncIterator[OpenNode]:
    """Open everything that handlers need; close it in the order that lets running disk work end first."""
    disk, locks, is_first = DiskWorkers(), UploadLocks(), siblings.worker == 0
    coordinators = await disk.run(read_known, files.known, config.coordinators)
    metadata = MetadataClient(config.identity, coordinators, contexts.client, instance=start.instance)
    blobs = await _opened_blobs(files, disk, siblings, metadata)
    uploads, works = UploadStore(blobs), Works(metrics.registry)
    numbers = WorkerNumbers(metrics.registry, siblings, works)
    watch = DiskWatch(disk, blobs, locks, is_primary=is_first, uploads_elsewhere=numbers.other_uploads)
    view = View(metadata, watch.heartbeat, known=files.known if is_first else None)
    peers = PeerClient(contexts.client, metadata, view)
    counts, audit = _node_metrics(metrics, watch, locks, blobs), AuditLog.of_people(files.audit)
    MemberMetrics(metrics.registry, contexts.credential, view, contexts.web)
    reach, announcement = Reach(config.id, peers, view), Announcement(config, metadata, view, start)
    budget = Budget(lambda: counts.client_bytes() + numbers.other_client_bytes())
    replication = Replication(
        node_id=config.id, metadata=metadata, view=view, blobs=blobs, peers=peers, disk=disk, metrics=counts
    )
    means = CustodyContext(config.id, metadata, view, blobs, disk, counts, _housekeeping(files), budget)
    custody = Custody(means, files.scrub, peers, files.mark_cold) if is_first else None
    partials, mark = await disk.run(PartialStore, blobs), custody.cold.mark_for_placing if custody else None
    fetches = Fetches(
        node_id=config.id, blobs=blobs, partials=partials, peers=peers, disk=disk, metrics=counts, mark=mark
    )
    _set_heartbeat_sources(watch, custody, counts, numbers, reach, contexts.web)
    exposition = numbers.exposition if siblings.workers > 1 else None
    ready = partial(_readiness, view, announcement, watch, numbers)
    access = access.with_members(view.console_members)
    api = _api_services(config, metadata, view, audit, exposition, ready, access, numbers.work)
    services = NodeServices(
        config.id,
        api,
        blobs,
        uploads,
        peers,
        replication,
        disk,
        counts,
        RecordCache(metadata, counts),
        locks,
        siblings,
        fetches=fetches,
        pulls=Pulls(fetches, blobs, disk, budget.take, custody.restore if custody else None),
        copies=UploadCopies(config.id, uploads, locks, peers, disk, counts, pace=budget.take),
        custody=custody,
    )
    await asyncio.gather(siblings.start(), peers.start())
    try:
        yield OpenNode(services, watch, numbers, reach, announcement, works)
    finally:
        await _close(services, means)


def _housekeeping(files: NodeFiles) -> AuditLog:
    return AuditLog(files.housekeeping, rotated=ROTATED_HOUSEKEEPING)


def _api_services(
    config: NodeConfig,
    metadata: MetadataClient,
    view: View,
    audit: AuditLog,
    exposition: Callable[[str], Awaitable[tuple[bytes, str]]] | None,
    readiness: Callable[[], Awaitable[str]],
    access: WebAccess,
    work: Callable[[], Awaitable[dict[int, list[WorkState] | None]]],
) -> ApiServices:
    return ApiServices(
        metadata=metadata,
        view=view,
        audit=audit,
        node_url=lambda node_id: node_url(view, node_id, own_url=url_of(config.address, config.api_port)),
        readiness=readiness,
        exposition=exposition,
        access=access,
        work=work,
        authority=authority_of(config.address, config.api_port),
    )


def _set_heartbeat_sources(
    watch: DiskWatch,
    custody: Custody | None,
    counts: NodeMetrics,
    numbers: WorkerNumbers,
    reach: Reach,
    web: WebCertificate | None,
) -> None:
    """Set the sources of heartbeat fields other than the state of the disk."""
    watch.scrubbed_since_ms = lambda: custody.scrubber.since_ms if custody else 0
    watch.custody_stopped = counts.custody_stops.kinds
    if custody is not None:
        watch.blocked_packs = lambda: custody.packing.blocked
        watch.cold_sizes = lambda: custody.cold.sizes
    watch.poison_elsewhere = numbers.other_unusable_paths
    watch.unreachable = reach.unreachable
    watch.web_certificate_ends_ms = lambda: 0 if web is None else web.not_after_ms


async def _close(services: NodeServices, custody_context: CustodyContext) -> None:
    await services.concatenations.close()
    await services.pulls.close()
    await services.copies.close()
    await services.prefixes.close()
    await services.replication.small_copies.close()
    await services.peers.close()
    await services.siblings.close()
    await asyncio.to_thread(services.disk.close)
    services.uploads.close()
    services.blobs.close()
    services.api.audit.close()
    custody_context.housekeeping.close()


async def _opened_blobs(
    files: NodeFiles, disk: DiskWorkers, siblings: Siblings, metadata: MetadataClient
) -> BlobStore:
    """Open the store, which packs small blobs as soon as no member can be of release 0.1.0."""
    blobs = await disk.run(BlobStore, files.data, maker=siblings.maker, is_leftover=siblings.is_leftover)
    blobs.packed.takes_new = lambda: metadata.rules_in_force >= SMALL_BLOBS_ARE_PACKED
    return blobs


def _node_metrics(metrics: Metrics, watch: DiskWatch, locks: UploadLocks, blobs: BlobStore) -> NodeMetrics:
    counts = NodeMetrics(metrics.registry)
    counts.uploads_in_progress.set_function(lambda: len(locks))
    counts.disk_free_bytes.set_function(lambda: watch.free_bytes)
    counts.disk_size_bytes.set_function(lambda: watch.total_bytes)
    counts.disk_writable.set_function(watch.is_writable)
    counts.poison_items.set_function(lambda: len(blobs.poison))
    counts.withdrawn_blobs.set_function(lambda: len(blobs.out_of_service))
    return counts


async def _readiness(view: View, announcement: Announcement, watch: DiskWatch, numbers: WorkerNumbers) -> str:
    """Return `ready`, or `disk_full` if the node serves its content and passes uploads on.

    Raises Unavailable while this node should get no requests.
    """
    view.require_fresh()
    view.require_leader()
    announcement.require()
    if not watch.is_writable() and not watch.is_full():
        raise Unavailable("The disk of this node cannot be written.")
    if not numbers.has_received_all():
        raise Unavailable("Some worker processes of this node have not started yet.")
    return "disk_full" if watch.is_full() else "ready"
