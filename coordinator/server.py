"""A coordinator process opens its directory, joins the group, and serves until it is stopped.

It serves the peer port and the client port.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from aiohttp import web

from ca.errors import InvalidRequest
from ca.identity import Identity
from ca.secretfiles import read_secret
from ca.tls import UnusableCredential
from coordinator.admin.authority import SigningAuthority
from coordinator.admin.kept_snapshots import KeptSnapshots
from coordinator.admin.offsite import read_offsite
from coordinator.admin.setup import new_leaf
from coordinator.cluster_metrics import ClusterMetrics
from coordinator.end_reason import reason_of
from coordinator.member.driver import LOG_THREAD, Driver
from coordinator.member.member import with_membership
from coordinator.member.member_clocks import MemberClocks
from coordinator.member.membership_changes import Operations
from coordinator.member.open_storage import Ledger, open_ledger
from coordinator.member.rebuilding import note_damage, rebuild
from coordinator.member.rules_upgrade import Upgrades
from coordinator.member.snapshot_fetch import Fetcher
from coordinator.member.state_checks import check_state
from coordinator.member.state_digests import Digests, check_not_diverged
from coordinator.placing import NodeChooser
from coordinator.raft.config import Config
from coordinator.raft.messages import Entry, EntryKind
from coordinator.raft_metrics import CoordinatorMetrics, timed_sync
from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.job_runs import JobRuns
from coordinator.reconcile.job_steps import SnapshotJob
from coordinator.reconcile.jobs import CoordinatorJobs
from coordinator.reconcile.keeper import NodeKeeper
from coordinator.reconcile.quotas import QuotaKeeper
from coordinator.rpc.call_metrics import ServedCalls
from coordinator.rpc.node_client import NodeOrders
from coordinator.rpc.raft_transport import Transport
from coordinator.rpc.server import PeerPort
from coordinator.rpc.state_view import StateView
from coordinator.service import Service
from coordinator.statuses import Statuses
from coordinator.storage.config import CoordinatorConfig, CoordinatorFiles
from coordinator.storage.state_damage import StateDamaged
from coordinator.user_tokens import UserTokens
from metadata.model.jobs import check_schedules
from metadata.protocol.calls import HeartbeatCall, HeartbeatReply
from metadata.rpc.client import MetadataClient
from metadata.rpc.instances import KnownInstances, count_start
from metadata.rpc.member_metrics import MemberMetrics
from metadata.rpc.node_health import NodeHealth
from metadata.rpc.roster import read_known
from metadata.rpc.tls_contexts import MemberContexts
from metadata.rpc.view import View
from runtime import logs
from runtime.background import Work, Works, WorkState
from runtime.kept_time import read_saved
from runtime.lifetime import (
    KNOWN_S,
    quieten_collector,
    raise_descriptor_limit,
    stop_signal,
    wait_for_first,
)
from runtime.logs import ReadLevel
from runtime.metrics import Metrics
from runtime.service_manager import ServiceManager, keep_informed, on_hangup
from web.app import new_application, serve, serve_on
from web.listener import Places, bound_socket, start_listening
from web.web_access import WebAccess, parse_web_access
from web.web_options import NO_WEB_OPTIONS, WebOptions

DRAIN_S = 10.0
PEER_DRAIN_S = 1.0  # members ask another coordinator at once; their connections are long-lived
RENEWAL_CHECK_S = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shell:
    """The parts of the client port's application. `readiness` is the answer of /readyz."""

    config: CoordinatorConfig
    files: CoordinatorFiles
    metadata: MetadataClient
    view: View
    metrics: Metrics
    readiness: Callable[[], Awaitable[str]]
    access: WebAccess
    works: Works

    async def work(self) -> dict[int, list[WorkState] | None]:
        """Return the background work of this process, which is its own only worker."""
        return {0: self.works.states()}


ApplicationFactory = Callable[[Shell], web.Application]


async def run_coordinator(
    data: Path,
    application: ApplicationFactory,
    *,
    http: tuple[str, int] | None = None,
    down_after_s: float | None = None,
    web: WebOptions = NO_WEB_OPTIONS,
    read_level: ReadLevel = logs.usual_level,
) -> None:
    """Run until SIGTERM or SIGINT, or until this coordinator was removed from the cluster.

    `application` builds the application of the client port; `http` is an extra plain listener for a proxy on
    this host; `down_after_s` overrides that of coordinator.json. On SIGHUP, it reloads the certificates on
    disk and the log level that `read_level` returns. Raises NotInitialised, InvalidRequest for a schedule of
    an unknown job and an offsite.json without a place, UnsafeSecretFile, WrongClusterKey, KeyDamaged,
    CannotListen, LogDamaged, StateLost, StateUnreadable, StateDiverged, UnknownRules, or the error that
    stopped the process.
    """
    logs.setup("coordinator", read_level())
    raise_descriptor_limit()
    access = parse_web_access(web)
    files = CoordinatorFiles(data)
    config = files.read_config()
    if down_after_s is not None:
        config = msgspec.structs.replace(config, down_after_s=down_after_s)
    check_schedules(config.schedules)
    check_not_diverged(files.diverged)
    read_secret(files.credential_path)
    metrics = Metrics("coordinator")
    ledger = await _opened(files, config, timed_sync(metrics.registry))
    try:
        await _run(files, config, metrics, ledger, application, http, access, read_level)
    except BaseExceptionGroup as group:
        if (reason := reason_of(group)) is not None:
            if isinstance(reason, StateDamaged):
                reason = await asyncio.to_thread(note_damage, files, reason)
            raise reason from group
        raise
    finally:
        ledger.close()


async def _opened(files: CoordinatorFiles, config: CoordinatorConfig, sync: Callable[[int], None]) -> Ledger:
    """Open log and database; rebuild a damaged database."""

    def connect() -> MetadataClient:
        contexts = MemberContexts(files.credential(), config.identity, takes_expired=True)
        return MetadataClient(config.identity, read_known(files.known, config.members), contexts.client)

    try:
        return await asyncio.to_thread(open_ledger, files, sync)
    except StateDamaged as damage:
        await rebuild(files, damage, connect, sync=sync)
    return await asyncio.to_thread(open_ledger, files, sync)


async def _run(
    files: CoordinatorFiles,
    config: CoordinatorConfig,
    metrics: Metrics,
    ledger: Ledger,
    application: ApplicationFactory,
    http: tuple[str, int] | None,
    access: WebAccess,
    read_level: ReadLevel,
) -> None:
    identity, contexts = config.identity, _contexts_of(files, config, access)
    coordinators = await asyncio.to_thread(read_known, files.known, config.members)
    removed, instance = asyncio.Event(), await asyncio.to_thread(count_start, files.instance, config.id)
    transport = Transport(identity, coordinators, contexts.client, removed.set, instance=instance)
    known = KnownInstances(files.instances, config.id)
    await asyncio.to_thread(known.read)
    metadata = MetadataClient(identity, coordinators, contexts.client)
    orders = NodeOrders(config.cluster, contexts.client)
    member = _Member(files, config, ledger, transport, metadata, removed, orders, contexts)
    view = View(
        metadata,
        lambda: HeartbeatCall(0, 0, 0),
        known=files.known,
        on_coordinators=transport.update,
        on_leader=member.follow_time,
    )
    MemberMetrics(metrics.registry, contexts.credential, view, contexts.web)
    _register_metrics(metrics, files, ledger, member)
    works = Works(metrics.registry)
    shell = Shell(config, files, metadata, view, metrics, member.readiness, access, works)
    peer_port = member.peer_port(member.service(identity), ServedCalls(metrics.registry), known)
    async with orders, works:
        works.start("driver", member.driver.run())
        works.start("transport", transport.run())
        works.start("metadata client", metadata.run())
        works.start("view", view.run())
        works.start("snapshot fetcher", member.fetcher.run())
        works.start("promotion of learners", member.operations.run())
        works.start("digests", member.digests.run())
        works.start("checks of the state", check_state(ledger.store))
        works.start("rules of the state", member.upgrades.run())
        works.start("states of nodes", member.keeper.run())
        works.start("quotas", member.quotas.run())
        works.start("background jobs", member.job_runs.run())
        works.start("renewal", _renew(files, config, member, contexts))
        works.start("kept time", member.clocks.keep_saved(files.time, config.id))
        works.start("word to the service manager", member.keep_manager_informed())
        await _serve(shell, application, peer_port, contexts, member, http, read_level, transport.open)


def _register_metrics(metrics: Metrics, files: CoordinatorFiles, ledger: Ledger, member: "_Member") -> None:
    """Register the metrics of this coordinator and of the cluster."""
    statuses = member.statuses
    CoordinatorMetrics(metrics.registry, statuses.own_status)
    ClusterMetrics(
        metrics.registry,
        files=files,
        ledger=ledger,
        view=member.view,
        node_states=statuses.node_states,
        node_disks=statuses.node_disks,
        failing_nodes=statuses.failing_nodes,
        contested_nodes=statuses.contested_nodes,
    )


def _contexts_of(files: CoordinatorFiles, config: CoordinatorConfig, access: WebAccess) -> MemberContexts:
    """Read the certificates on disk. Raises InvalidRequest for those of another address."""
    contexts = MemberContexts(files.credential(), config.identity, takes_expired=True, web=access.certificate)
    try:
        contexts.credential.require_address(config.own.address)
    except UnusableCredential as error:
        why = (
            f"coordinator.json: address: {error.details}. To change it, use `coordinator rebuild --address`."
        )
        raise InvalidRequest(why) from error
    return contexts


class _Member:
    """The parts of this process that need each other.

    The driver reports events to the fetcher, the digests and the departure, and they call it.
    """

    def __init__(
        self,
        files: CoordinatorFiles,
        config: CoordinatorConfig,
        ledger: Ledger,
        transport: Transport,
        metadata: MetadataClient,
        removed: asyncio.Event,
        orders: NodeOrders,
        contexts: MemberContexts,
    ) -> None:
        self._own_id = config.id
        self._ledger, self._contexts = ledger, contexts
        credential = contexts.credential
        self.removed = removed
        self.view = StateView(ledger.store)
        self.clocks = MemberClocks(saved=read_saved(files.time, config.id))
        self.manager = ServiceManager()
        self.authority = SigningAuthority(
            ledger.store,
            files.read_cluster_key(),
            config.cluster,
            credential.root_pem,
            clock_ms=self.clocks.shown_ms,
        )
        self.authority.require_key()
        self.driver = self._new_driver(transport)
        self.tokens = self._new_tokens(config)
        fetched = self.driver.note_fetched
        self.fetcher = Fetcher(metadata, ledger.snapshots, fetched, lambda: self.digests.forbids)
        self.operations = Operations(config.id, self.driver, self.view)
        self.digests = self._new_digests(files, config, metadata)
        self.health = NodeHealth()
        self.upgrades = Upgrades(config.id, self.driver, ledger.store, metadata, self.view, self.health.rules)
        context = ReconcileContext(
            self.driver,
            ledger.store,
            self.view,
            self.health,
            orders,
            clocks=self.clocks,
            grace_ms=config.gc_grace_s * 1000,
        )
        self.keeper = NodeKeeper(context, down_after_s=config.down_after_s)
        self.quotas = QuotaKeeper(context)
        self.kept_snapshots = KeptSnapshots(files)
        self.placing = NodeChooser(config, self.view, self.health, ledger.store.rules)
        self.job_runs = JobRuns(
            config.id,
            self.driver,
            ledger.store,
            CoordinatorJobs(context, SnapshotJob(context, config, files, read_offsite(files))).all,
            schedules=config.schedules,
            clock_doubt=context.clock_doubt,
            clock_ms=self.clocks.now_ms,
        )
        self.statuses = self._new_statuses(config, context)

    def _new_tokens(self, config: CoordinatorConfig) -> UserTokens:
        return UserTokens(
            self.authority,
            self.clocks,
            self.driver,
            ttl_s_max=config.token_ttl_s_max,
            service_ttl_s_max=config.service_token_ttl_s_max,
            rules=self._ledger.store.rules,
        )

    def _new_digests(
        self, files: CoordinatorFiles, config: CoordinatorConfig, metadata: MetadataClient
    ) -> Digests:
        return Digests(
            config.id,
            self.driver,
            metadata,
            self.view,
            store=self._ledger.store,
            snapshots=self._ledger.snapshots,
            interval_s=config.digest_s,
            files=files,
        )

    def _new_statuses(self, config: CoordinatorConfig, context: ReconcileContext) -> Statuses:
        return Statuses(
            config.identity,
            self.driver,
            self._ledger.store,
            self.view,
            health=self.health,
            digests=self.digests,
            credential=self._contexts.credential,
            clocks=self.clocks,
            schedules=config.schedules,
            copy_failures=context.failures.sentences,
            web=self._contexts.web,
        )

    def _new_driver(self, transport: Transport) -> Driver:
        ledger = self._ledger
        return Driver(
            with_membership(Config(self._own_id, (self._own_id,)), ledger.store),
            ledger.log,
            ledger.store,
            ledger.snapshots,
            transport.send,
            lambda offer: self.fetcher.offer(offer),
            self._applied,
            clocks=self.clocks,
        )

    def peer_port(self, service: Service, calls: ServedCalls, known: KnownInstances) -> PeerPort:
        """Create the peer port of `service`."""
        return PeerPort(
            service.handle,
            self.driver.step,
            service.check,
            calls,
            known.admit,
            service.recall,
            clocks_ms=self.clocks.both_ms,
        )

    def service(self, identity: Identity) -> Service:
        """Create the service for calls of other members."""
        return Service(
            identity,
            self.driver,
            self._ledger.store,
            self.view,
            authority=self.authority,
            tokens=self.tokens,
            health=self.health,
            snapshots=self._ledger.snapshots,
            operations=self.operations,
            digests=self.digests,
            clocks=self.clocks,
            statuses=self.statuses,
            placing=self.placing,
            kept_snapshots=self.kept_snapshots,
        )

    def follow_time(self, reply: HeartbeatReply) -> None:
        """Use the time of the leader, which may be this coordinator."""
        if reply.leader != self._own_id:
            self.clocks.follow(reply.kept_ms)

    async def readiness(self) -> str:
        """Return `ready`, or `disk_full` while this coordinator accepts only reads."""
        return "ready" if self.driver.has_room else "disk_full"

    async def keep_manager_informed(self) -> None:
        """Report to the service manager that this process is alive, and its state."""
        driver = self.driver
        await keep_informed(
            self.manager, thread_name=LOG_THREAD, take_job=driver.log_answers, status=self._condition
        )

    async def _condition(self) -> str:
        driver, room = self.driver, "" if self.driver.has_room else ", its disk is full"
        role = "Leads" if driver.is_leader else f"Follows {driver.leader}" if driver.leader else "No leader"
        return f"{role}{room}"

    def _applied(self, entries: Sequence[Entry], replies: Sequence[bytes]) -> None:
        self.digests.deliver(entries, replies)
        self.job_runs.deliver(entries)
        if any(entry.kind is EntryKind.MEMBERSHIP for entry in entries) and self.is_removed():
            self.removed.set()

    def is_removed(self) -> bool:
        """Return whether the state says that this coordinator was removed."""
        return self._own_id in self.view().removed_coordinators


async def _serve(
    shell: Shell,
    application: ApplicationFactory,
    peer_port: PeerPort,
    contexts: MemberContexts,
    member: _Member,
    http: tuple[str, int] | None,
    read_level: ReadLevel,
    on_open: Callable[[], None],
) -> None:
    def reload() -> None:
        contexts.reload_all()
        logs.reread_level(read_level)

    own = shell.config.own
    peers = new_application(peer_port.routes(), component="peer")
    api = application(shell)
    async with contextlib.AsyncExitStack() as listeners:
        listener = await serve(
            peers,
            host=own.address,
            port=own.peer_port,
            ssl_context=contexts.peer.listening,
            peer=True,
            metrics=shell.metrics,
        )
        # The client port drains first: its requests still need the leader, which may be this process.
        listeners.push_async_callback(listener.close, PEER_DRAIN_S)
        listeners.push_async_callback(peer_port.close)
        places, ports = Places(), [(own.address, own.api_port), *((http,) if http else ())]
        bound = [listeners.enter_context(await bound_socket(*port)) for port in ports]
        on_open()
        quieten_collector()
        with stop_signal() as stop, on_hangup(reload, member.manager):
            ends = (stop.wait(), member.removed.wait())
            await wait_for_first(shell.view.wait_until_fresh(), *ends, timeout_s=KNOWN_S)
            if not (stop.is_set() or member.removed.is_set()):
                for each, context in zip(bound, (contexts.api.listening, None), strict=False):
                    listener = await serve_on(start_listening(each), api, ssl_context=context, places=places)
                    listeners.push_async_callback(listener.close, DRAIN_S)
                member.manager.ready()
                told = "coordinator %s listens on %s, ports %d and %d"
                _log.info(told, own.coordinator_id, own.address, own.api_port, own.peer_port)
            await wait_for_first(stop.wait(), member.removed.wait())
        if member.removed.is_set():
            _log.warning(
                "this coordinator was removed from the cluster: it stops, and its data can be deleted"
            )
        member.manager.notify_stopping()
        _log.info("stopping")
        await member.operations.hand_over()
    _log.info("stopped")


async def _renew(
    files: CoordinatorFiles, config: CoordinatorConfig, member: _Member, contexts: MemberContexts
) -> None:
    """Renew this coordinator's own certificate: it holds the key of the CA.

    It renews after two thirds of its life, or if there is a newer intermediate than signed it. A certificate
    that is valid for longer is kept at start: one issued by a fast clock would not be valid yet for the
    others.
    """
    renewal, authority = contexts.credential.renewal(), member.authority

    async def look() -> None:
        nonlocal renewal
        if renewal.is_due(member.clocks.shown_ms()) or authority.is_newer_than(contexts.credential):
            new_leaf(files, config, authority.sign_leaf)
            renewal = contexts.credential.renewal()
            contexts.reload()
            _log.info("renewed the certificate")

    trouble, every_s = "the certificate could not be renewed; the next try follows", RENEWAL_CHECK_S
    await Work("renewal", look, every_s=every_s, trouble=trouble, level=logging.ERROR).run()
