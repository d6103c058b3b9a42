"""A coordinator process: opens what it owns, joins the group, serves the peer port and the client port
until told to stop.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from ca.errors import FilestoreError
from ca.identity import Identity, Role
from ca.secretfiles import read_secret
from coordinator.authority import ClusterAuthority
from coordinator.calls import HeartbeatCall
from coordinator.client import MetadataClient
from coordinator.clock import now_ms
from coordinator.config import CoordinatorConfig, CoordinatorFiles
from coordinator.contexts import MemberContexts
from coordinator.driver import Driver
from coordinator.health import NodeHealth
from coordinator.lifetime import raise_descriptor_limit, stop_signal
from coordinator.log import SegmentLog
from coordinator.metrics import CoordinatorMetrics, Metrics, timed_sync
from coordinator.raft.config import Config
from coordinator.rpc import PeerPort
from coordinator.service import Service
from coordinator.setup import new_leaf, renewal_due
from coordinator.store import Store, replay
from coordinator.transport import Transport
from coordinator.view import View
from coordinator.web import new_application, serve

DRAIN_S = 10.0
PEER_DRAIN_S = 1.0  # members ask another coordinator at once; their connections are long-lived
RENEWAL_CHECK_S = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shell:
    """What the client port's application is built from."""

    config: CoordinatorConfig
    files: CoordinatorFiles
    metadata: MetadataClient
    view: View
    metrics: Metrics


ApplicationFactory = Callable[[Shell], web.Application]


async def run_coordinator(
    data: Path, application: ApplicationFactory, *, http: tuple[str, int] | None = None
) -> None:
    """Run until SIGTERM or SIGINT. Raises NotInitialised, LogDamaged, or what made it impossible to go on.

    `application` builds what the client port serves; `http` is an extra plain listener for a proxy on this
    host.
    """
    raise_descriptor_limit()
    files = CoordinatorFiles(data)
    config = files.read_config()
    metrics = Metrics("coordinator")
    log = await asyncio.to_thread(SegmentLog.open, files.log, sync=timed_sync(metrics.registry))
    store = await asyncio.to_thread(Store, files.state)
    await asyncio.to_thread(replay, log, log.hard_state.commit, store)
    authority = ClusterAuthority(
        store, read_secret(files.cluster_key), config.cluster, files.root.read_text("ascii")
    )
    contexts = MemberContexts(files.credential())
    identity = Identity(config.cluster, Role.COORDINATOR, config.id)
    transport = Transport(identity, config.members, contexts.client)
    raft_config = Config(config.id, tuple(member.coordinator_id for member in config.members))
    driver = Driver(raft_config, log, store, transport.send)
    service = Service(identity, driver, store, authority, NodeHealth())
    metadata = MetadataClient(identity, config.members, contexts.client)
    view = View(metadata, lambda: HeartbeatCall(0, 0, 0))
    CoordinatorMetrics(metrics.registry, service.own_status)
    shell = Shell(config, files, metadata, view, metrics)
    peer_port = PeerPort(service.handle, driver.step, service.check, service.coordinator_ids)
    try:
        async with asyncio.TaskGroup() as group:
            owned = [
                group.create_task(driver.run(), name="driver"),
                group.create_task(transport.run(), name="transport"),
                group.create_task(metadata.run(), name="metadata client"),
                group.create_task(view.run(), name="view"),
                group.create_task(_renew(files, config, authority, contexts), name="renewal"),
            ]
            await _serve(shell, application, peer_port, contexts, driver, http)
            for task in owned:
                task.cancel()
    finally:
        store.close()
        log.close()


async def _serve(
    shell: Shell,
    application: ApplicationFactory,
    peer_port: PeerPort,
    contexts: MemberContexts,
    driver: Driver,
    http: tuple[str, int] | None,
) -> None:
    own = shell.config.own
    peers = new_application(peer_port.routes(), component="peer")
    api = application(shell)
    async with contextlib.AsyncExitStack() as listeners:
        listener = await serve(
            peers, host=own.address, port=own.peer_port, ssl_context=contexts.peer.listening, peer=True
        )
        # The client port drains first: its requests still need the leader, which may be this process.
        listeners.push_async_callback(listener.close, PEER_DRAIN_S)
        listeners.push_async_callback(peer_port.close)
        for host, port, context in (
            (own.address, own.api_port, contexts.api.listening),
            *(((*http, None),) if http else ()),
        ):
            listener = await serve(api, host=host, port=port, ssl_context=context)
            listeners.push_async_callback(listener.close, DRAIN_S)
        with stop_signal() as stop:
            _log.info(
                "coordinator %s listens on %s, ports %d and %d",
                own.coordinator_id,
                own.address,
                own.api_port,
                own.peer_port,
            )
            await stop.wait()
        _log.info("stopping")
        driver.transfer_leader()
    _log.info("stopped")


async def _renew(
    files: CoordinatorFiles, config: CoordinatorConfig, authority: ClusterAuthority, contexts: MemberContexts
) -> None:
    """Renew this coordinator's own certificate at two thirds of its life: it holds the key of the CA.

    A certificate that is good for longer is kept at start: one made by a clock that runs ahead would not be
    valid yet for the others.
    """
    due_at_ms = renewal_due(files)
    while True:
        if now_ms() >= due_at_ms:
            try:
                due_at_ms = new_leaf(files, config, authority)
                contexts.reload()
                _log.info("renewed the certificate")
            except (FilestoreError, OSError):
                _log.exception("the certificate could not be renewed; the next try follows")
        await asyncio.sleep(RENEWAL_CHECK_S)
