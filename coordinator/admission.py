"""Access control of a coordinator's peer port, by its state.

It admits members with a valid certificate, and only one process of each node.

A certificate is in a directory, and directories can be copied. So each connection of a node names its
directory and the start of the process in it (`metadata.model.instance`), and each start is announced in the
log. From then on, an earlier start and another directory are rejected everywhere. A later start of the same
directory is accepted once the previous one was silent for PLACEABLE_S, or if the same directory on the same
machine says that it has ended. Rejected processes are shown to the operator. No I/O here but reads of the
state.
"""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import UNSET

from ca.errors import Conflict, Forbidden, Gone, InvalidRequest, Unauthorized, Unavailable
from ca.identity import Identity, Role, check_address
from ca.tls import Peer
from coordinator.machine.nodes import is_forgotten
from coordinator.storage.state_store import Store
from metadata.model.instance import contradiction, parse_instance
from metadata.model.records import ClusterView, NodeRecord
from metadata.model.rules import NODES_TELL_RULES
from metadata.protocol.calls import AnyCall, HeartbeatCall, ReadCall, RulesCall
from metadata.protocol.commands import (
    NODE_COMMANDS,
    OWN_COMMANDS,
    AnnounceNode,
    AnyCommand,
    CompleteUpload,
    MoveNode,
    OpenSession,
    ReportHash,
)
from metadata.protocol.queries import GetView
from metadata.rpc.node_health import PLACEABLE_S, NodeHealth

_UNKNOWN: Final = (
    "the cluster does not know its certificate. If it is the right process, revoke the node, and let "
    "it join again with a token for its name"
)
_log = logging.getLogger(__name__)


class Admission:
    """On the event loop. `clock_s`: any monotonic clock."""

    def __init__(
        self,
        own: Identity,
        store: Store,
        view: Callable[[], ClusterView],
        health: NodeHealth,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own = own
        self._store = store
        self._view = view
        self._health = health
        self._clock_s = clock_s
        self._started_s = clock_s()
        self._version = -1
        self._nodes: dict[str, NodeRecord] = {}
        self._serials: dict[str, list[str]] = {}
        self._logged: dict[str, str] = {}  # by node, the last rejected process in our log

    def check(self, peer: Peer) -> None:
        """Raise Unauthorized unless the peer is a member with a live certificate, in the state here.

        Raises Gone for a removed member, so that it can report that; Conflict for a process that is not the
        active one of its node; Unavailable while the leader has not recorded a certificate that a restore has
        forgotten.
        """
        identity = peer.identity
        if identity.cluster != self._own.cluster:
            raise Unauthorized("a certificate of another cluster")
        if identity.role is Role.COORDINATOR:
            if identity.id in self._view().removed_coordinators:
                raise Gone("This coordinator was removed from the cluster.")
            return
        node = self._node(identity.id)
        is_live = self._is_live(identity.id, peer.serial)
        if not is_live:
            self._require_forgotten(node, peer)
        if node is not None and (why := contradiction(node.speaker, peer.instance)):
            self._refuse(node, peer.instance, why)
            raise Conflict(f"This process is not accepted as the node {identity.id}: {why}.")
        if not is_live:
            raise Unavailable(f"The leader has to record the certificate of the node {identity.id} first.")

    def is_forgotten(self, peer: Peer) -> bool:
        """Return whether the leader has to record the certificate of a node, which a restore has forgotten.

        It does for the process that may be the active one of the node, as far as the state shows.
        """
        identity = peer.identity
        if identity.role is not Role.NODE or identity.cluster != self._own.cluster:
            return False
        node = self._node(identity.id)
        if node is None or self._is_live(identity.id, peer.serial):
            return False
        return not contradiction(node.speaker, peer.instance) and self._has_forgotten(peer)

    def _has_forgotten(self, peer: Peer) -> bool:
        question = partial(is_forgotten, node_id=peer.identity.id, not_before_ms=peer.not_before_ms)
        return self._store.read_with(question)

    def _require_forgotten(self, node: NodeRecord | None, peer: Peer) -> None:
        """Raise Gone or Unauthorized for an unknown certificate that no restore has forgotten."""
        if node is None:
            raise Gone("This node was removed from the cluster.")
        if self._has_forgotten(peer):
            return
        if self._health.last(node.node_id) is None and peer.serial not in self._view().revoked_serials:
            self._refuse(node, peer.instance, _UNKNOWN)
        raise Unauthorized(f"the certificate of {peer.identity.uri} is revoked or unknown")

    def require_known(self, peer: Peer, call: AnyCall) -> None:
        """Raise Unavailable for a coordinator that this one does not know, or not yet.

        A certificate alone gives it only the view of the cluster.
        """
        if peer.identity.role is not Role.COORDINATOR or peer.identity == self._own:
            return
        known = self._view().coordinators
        is_open = isinstance(call, (HeartbeatCall, RulesCall)) or (
            isinstance(call, ReadCall) and isinstance(call.query, GetView)
        )
        if not is_open and known and all(each.coordinator_id != peer.identity.id for each in known):
            raise Unavailable(f"The coordinator {peer.identity.id} is unknown here.")

    def require_speaker(self, peer: Peer, command: AnyCommand) -> None:
        """Raise Unavailable while another process is active for the node, and has not certainly ended.

        Raises InvalidRequest for an address that no certificate may have.
        """
        self._require_sound(command)
        node = self._node(peer.identity.id)
        if peer.identity.role is not Role.NODE or node is None or isinstance(command, OpenSession):
            return
        if not isinstance(command, AnnounceNode):
            if not self.is_active_process(peer):
                raise Unavailable(f"This process has not announced itself as the node {node.node_id} yet.")
            return
        if command.instance and command.instance != peer.instance:
            raise InvalidRequest("instance: does not match the instance of this connection")
        self.require_ended(peer, succeeds=command.succeeds)

    def require_ended(self, peer: Peer, *, succeeds: str = "") -> None:
        """Raise Unavailable while another process of this node is active, or was a moment ago."""
        node = self._node(peer.identity.id)
        if node is None or self.is_active_process(peer) or parse_instance(node.speaker).process == succeeds:
            return
        last = self._health.last(node.node_id)
        since_s = self._started_s if last is None else last.at_s
        silent_s = self._clock_s() - since_s
        if silent_s < PLACEABLE_S:
            if last is not None:
                self._refuse(node, peer.instance, "another process of this name is sending heartbeats")
            raise Unavailable(f"Another process of the node {node.node_id} was active {silent_s:.1f} s ago.")

    def _require_sound(self, command: AnyCommand) -> None:
        """Raise InvalidRequest for an address that a certificate must not have."""
        if isinstance(command, MoveNode):
            check_address(command.address, development=self._view().development, field="address")

    def require_rules(self, peer: Peer, call: HeartbeatCall) -> None:
        """Raise Conflict for a node that does not know the rules in force.

        The rules were raised while it was down, or it was downgraded since.
        """
        rules = self._store.rules()
        if peer.identity.role is not Role.NODE or call.rules >= rules or rules < NODES_TELL_RULES:
            return
        why = (
            f"The version of the node {peer.identity.id} is older than the cluster requires, which "
            f"uses the rules {rules}. Install the version of the other members."
        )
        if self._health.refuse_too_old(peer.identity.id, at_s=self._clock_s()):
            _log.warning("%s", why)
        raise Conflict(why)

    def is_active_process(self, peer: Peer) -> bool:
        """Return whether the process is the active one of its node, as far as that is known."""
        node = self._node(peer.identity.id)
        return node is None or not node.speaker or peer.instance in ("", node.speaker)

    def _is_live(self, node_id: str, serial: str) -> bool:
        """Return whether the certificate counts.

        Called for each message, so the view comes before the database.
        """
        self._look()
        return serial in self._serials.get(node_id, ()) or self._store.certificate_is_live(node_id, serial)

    def _node(self, node_id: str) -> NodeRecord | None:
        self._look()
        return self._nodes.get(node_id)

    def _look(self) -> None:
        view = self._view()
        if view.version != self._version:
            self._nodes = {node.node_id: node for node in view.nodes}
            self._serials = view.node_serials
            self._version = view.version

    def _refuse(self, node: NodeRecord, instance: str, why: str) -> None:
        """Show a rejected process to operators for a while; logged once for each process."""
        self._health.refuse(node.node_id, why, at_s=self._clock_s())
        if self._logged.get(node.node_id) != instance:
            self._logged[node.node_id] = instance
            _log.warning(
                "rejected a second process that claims to be the node %s: %s",
                node.node_id,
                why,
                extra={"refused": instance, "speaks": node.speaker},
            )


def require_own(identity: Identity, command: AnyCommand) -> None:
    """Raise Forbidden unless the member acts for itself."""
    if isinstance(command, ReportHash):
        if (identity.role, identity.id) != (Role.COORDINATOR, command.coordinator_id):
            raise Forbidden("A coordinator may only act for itself.")
        return
    if not isinstance(command, NODE_COMMANDS):
        raise Forbidden(f"A member may not propose {type(command).__name__}.")
    if isinstance(command, OWN_COMMANDS) and command.node_id != identity.id:
        raise Forbidden("A node may only act for itself.")
    content = command if isinstance(command, CompleteUpload) else getattr(command, "content", UNSET)
    if content is not UNSET and identity.id not in content.replicas:
        raise Forbidden("The node that completes an upload must hold its content.")
