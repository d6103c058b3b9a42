"""One coordinator's view of itself, of the group and of the nodes: `filestore status`, and metrics.

It uses the local state and the heartbeats received here, without asking others, so it works without a
majority too.

Tested by tests/unit/coordinator/test_expiring_certificates.py.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from ca.certificates import UntrustedCertificate
from ca.identity import Identity
from ca.tls import Credential
from ca.webcertificate import WebCertificate
from coordinator.member.driver import Driver
from coordinator.member.member_clocks import MemberClocks
from coordinator.member.state_digests import Digests
from coordinator.rpc.server import value_of
from coordinator.rpc.state_view import StateView
from coordinator.storage.state_store import Store
from metadata.model.jobs import JOBS
from metadata.model.records import DOWN, ClusterView
from metadata.model.replica_records import ReplicaCounts
from metadata.model.rules import RULES
from metadata.protocol.calls import (
    FOR_BROWSERS,
    INTERMEDIATE,
    ROOT,
    CertificateEnd,
    CoordinatorStatus,
    FollowerStatus,
    HeartbeatCall,
    NodeStatus,
    StatusReply,
)
from metadata.protocol.queries import GetReplicaCounts
from metadata.rpc.member_metrics import expiries
from metadata.rpc.node_health import NodeHealth
from runtime.bounds import COUNT_MAX
from runtime.clock import now_ms
from runtime.version import VERSION

# A leaf lives for 7 days and is renewed after two thirds of them, 56 hours before its end: this is most of a
# day without a renewal.
LEAF_WARNING_MS: Final = 36 * 3_600_000
AUTHORITY_WARNING_MS: Final = 30 * 86_400_000
# ACME clients renew one of 90 days with 30 left, one of 45 with 15: this is days without a renewal.
WEB_WARNING_MS: Final = 10 * 86_400_000


class Statuses:
    """On the event loop. Changes nothing."""

    def __init__(
        self,
        identity: Identity,
        driver: Driver,
        store: Store,
        view: StateView,
        *,
        health: NodeHealth,
        digests: Digests,
        credential: Credential,
        clocks: MemberClocks,
        schedules: Mapping[str, float],
        copy_failures: Callable[[], Mapping[str, str]],
        web: WebCertificate | None,
    ) -> None:
        """Keep the sources of the status.

        `copy_failures`: what to tell an operator about nodes that fail at copies, by node. `web`: the
        certificate for browsers of this coordinator, if it has one.
        """
        self._identity = identity
        self._driver = driver
        self._store = store
        self._view = view
        self._health = health
        self._digests = digests
        self._credential = credential
        self._clocks = clocks
        self._schedules = {job.name: schedules.get(job.name, job.schedule_s) for job in JOBS}
        self._copy_failures = copy_failures
        self._web = web

    def reply(self) -> StatusReply:
        """Return the whole status. The caller was checked."""
        view, at_s, at_ms = self._view(), time.monotonic(), now_ms()
        files, blobs, blob_bytes = self._store.totals()
        replicas = self._store.answer(GetReplicaCounts(), at_ms=self._clocks.now_ms())
        return StatusReply(
            cluster=self._identity.cluster,
            coordinator=self.own_status(),
            coordinators=view.coordinators,
            nodes=self._described(self._nodes(view, at_s)),
            files=files,
            blobs=blobs,
            blob_bytes=blob_bytes,
            at_ms=at_ms,
            correction_ms=self._clocks.correction_ms(),
            write_quorum=view.write_quorum,
            replicas_wanted=view.replicas,
            runs=self._store.running_runs(),
            certificates=ending_soon(
                self._store,
                self._credential,
                self._identity.id,
                at_ms=at_ms,
                web_ends_ms=self._web_ends_ms(view),
            ),
            schedules=self._schedules,
            replicas=msgspec.msgpack.decode(value_of(replicas), type=ReplicaCounts),
            version=VERSION,
            rules=self._store.rules(),
            rules_known=RULES,
            certificate_ends_at_ms=own_end_ms(self._credential),
        )

    def own_status(self) -> CoordinatorStatus:
        """Return the state of this member of the Raft group."""
        status = self._driver.status()
        return CoordinatorStatus(
            id=status.id,
            role=str(status.role.name).lower(),
            term=status.term,
            leader=status.leader,
            commit=status.commit,
            applied=self._driver.applied_index,
            last_index=status.last_index,
            disk_full=not self._driver.has_room,
            clock_wrong=self._driver.is_clock_wrong,
            followers=[
                FollowerStatus(id=name, match=p.match, state=p.state.value, active=p.active)
                if name != status.id
                else FollowerStatus(id=name, match=p.match, state="leader", active=True)
                for name, p in sorted(status.progress.items())
            ],
            diverged=self._digests.diverged,
            differ=bool(self._digests.differ_at),
            cache_leases=self._driver.following.subscribers,
            recovering=status.recovering,
            clock_jump_ms=self._clocks.jump_ms(),
        )

    def node_states(self) -> list[str]:
        """Return the state of every node, by its heartbeats here."""
        return [node.state for node in self._nodes(self._view(), time.monotonic())]

    def node_disks(self) -> list[str]:
        """Return the state of every node's disk, by its heartbeats here."""
        return [self._health.disk(node.node_id) for node in self._view().nodes]

    def contested_nodes(self) -> list[str]:
        """Return the nodes that a second process claims to be, which is rejected here."""
        at_s = time.monotonic()
        return [node.node_id for node in self._view().nodes if self._health.rival(node.node_id, at_s=at_s)]

    def failing_nodes(self) -> dict[str, str]:
        """Return descriptions of nodes that fail at copies, by node; nodes that are down are omitted.

        Only the leader has them, as others make no copies.
        """
        if not self._driver.is_leader:
            return {}
        found = self._copy_failures()
        up = [node.node_id for node in self._view().nodes if node.state != DOWN]
        return {node_id: found[node_id] for node_id in up if node_id in found}

    def _web_ends_ms(self, view: ClusterView) -> dict[str, int]:
        """Return when members' certificates for browsers end, if reported here."""
        found = {} if self._web is None else {f"coordinator {self._identity.id}": self._web.not_after_ms}
        for node in view.nodes:
            if (last := self._health.last(node.node_id)) is not None:
                found[f"node {node.node_id}"] = last.heartbeat.web_certificate_ends_ms
        return found

    def _described(self, nodes: list[NodeStatus]) -> list[NodeStatus]:
        """Add the log's facts about each node, which metrics do not need."""
        replicas = self._store.node_replicas()
        ends_at_ms = dict(self._store.node_certificates_ending(before_ms=COUNT_MAX))
        return [
            msgspec.structs.replace(
                each,
                replicas=replicas.get(each.node.node_id, 0),
                certificate_ends_at_ms=ends_at_ms.get(each.node.node_id, 0),
            )
            for each in nodes
        ]

    def _nodes(self, view: ClusterView, at_s: float) -> list[NodeStatus]:
        states, failing, correction_ms = [], self.failing_nodes(), self._clocks.correction_ms()
        for node in view.nodes:
            last = self._health.last(node.node_id)
            beat = last.heartbeat if last else HeartbeatCall(0, 0, 0)
            offset_ms = last.clock_offset_ms if last else None
            states.append(
                NodeStatus(
                    node=node,
                    state=self._health.shown_state(node, at_s=at_s),
                    heard_ms_ago=int((at_s - last.at_s) * 1000) if last else 0,
                    free_bytes=beat.free_bytes,
                    total_bytes=beat.total_bytes,
                    uploads=beat.uploads,
                    clock_offset_ms=None if offset_ms is None else offset_ms - correction_ms,
                    disk=self._health.disk(node.node_id),
                    scrubbed_since_ms=min(beat.scrubbed_since_ms, now_ms()),
                    custody_stopped=beat.custody_stopped,
                    copy_failures=failing.get(node.node_id, ""),
                    poison=beat.poison,
                    poison_count=beat.poison_count,
                    since_ms=self._health.since_ms(node.node_id),
                    rival=self._health.rival(node.node_id, at_s=at_s),
                    version=beat.version,
                    rules=beat.rules,
                    is_too_old=self._health.is_too_old(node.node_id, at_s=at_s),
                    blocked_dead_bytes=beat.blocked_dead_bytes,
                    blocked_wanted_bytes=beat.blocked_wanted_bytes,
                )
            )
        return states


def own_end_ms(credential: Credential) -> int:
    """Return when the certificate of this coordinator ends, by its file; 0 if that is unreadable."""
    try:
        return expiries(credential).leaf_ms
    except (OSError, UntrustedCertificate):
        return 0


def ending_soon(
    store: Store, credential: Credential, own_id: str, *, at_ms: int, web_ends_ms: Mapping[str, int]
) -> list[CertificateEnd]:
    """Return certificates that expire soon: the newest of each node; of this coordinator by its file.

    `web_ends_ms`: when those for browsers end, by member, such as `node n1`; 0 without one.
    """
    found = [
        CertificateEnd(f"node {node_id}", expires_at_ms)
        for node_id, expires_at_ms in store.node_certificates_ending(before_ms=at_ms + LEAF_WARNING_MS)
    ]
    found += [
        CertificateEnd(member + FOR_BROWSERS, ends_ms)
        for member, ends_ms in web_ends_ms.items()
        if 0 < ends_ms < at_ms + WEB_WARNING_MS
    ]
    try:
        own = expiries(credential)
    except (OSError, UntrustedCertificate):
        return found
    if own.leaf_ms < at_ms + LEAF_WARNING_MS:
        found.append(CertificateEnd(f"coordinator {own_id}", own.leaf_ms))
    for holder, expires_at_ms in ((INTERMEDIATE, own.intermediate_ms), (ROOT, own.root_ms)):
        if expires_at_ms < at_ms + AUTHORITY_WARNING_MS:
            found.append(CertificateEnd(holder, expires_at_ms))
    return found
