"""Answer the calls of members to a coordinator.

These are changes, reads, joins, certificates, tokens, heartbeats, status, snapshots, and changes of the
group. The certificate identifies the caller; a node acts only for itself. If this coordinator leads, it sets
the time of every change and chooses placements: the state machine has no clock and receives no heartbeats.

Tested by tests/unit/coordinator/test_service_time.py.
"""

import asyncio
import contextlib
import logging
import time

import msgspec
from msgspec import UNSET

from ca import csr
from ca.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    Unavailable,
)
from ca.hostnames import is_literal
from ca.identity import Identity, Role, check_address, check_member_id, check_port
from ca.keys import public_key_digest
from ca.tls import Peer
from ca.usertoken import SERVICE_TTL_SECONDS_MAX, TTL_SECONDS_MAX
from coordinator.admin.authority import IntermediateCredential, SigningAuthority
from coordinator.admission import Admission
from coordinator.member.driver import Driver
from coordinator.member.member_clocks import MemberClocks
from coordinator.member.membership_changes import Operations
from coordinator.member.state_digests import Digests
from coordinator.placing import NodeChooser
from coordinator.raft.core import NotLeader
from coordinator.rpc.caller_proof import CallerVerifier
from coordinator.rpc.server import Refused, value_of
from coordinator.rpc.state_view import StateView
from coordinator.statuses import Statuses
from coordinator.storage.snapshot_store import Chunk, SnapshotStore
from coordinator.storage.state_store import Store
from coordinator.user_tokens import UserTokens
from metadata.model.jobs import check_parameters, job_kind
from metadata.model.records import HEALTHY, Caller, CertificateRecord, CoordinatorRecord, UserRecord
from metadata.model.rules import MEMBERS_ARE_NAMED, RULES, NotInForce
from metadata.protocol.calls import (
    PROOF_NONE,
    PROOF_SOON,
    AddCoordinatorCall,
    AnyCall,
    FollowCall,
    FollowReply,
    HeartbeatCall,
    HeartbeatReply,
    JoinCall,
    JoinCoordinatorCall,
    JoinReply,
    MintCall,
    MintReply,
    PlaceCall,
    PlaceReply,
    ProposeCall,
    ReadCall,
    RemoveCoordinatorCall,
    RenewCall,
    RenewTokenCall,
    RotateKeyCall,
    RulesCall,
    SnapshotCall,
    SnapshotChunkCall,
    StatusCall,
    StatusReply,
    TicketCall,
    TicketReply,
    TransferLeaderCall,
)
from metadata.protocol.commands import (
    NODE_COMMANDS,
    OWN_COMMANDS,
    AddIntermediate,
    AddTokenKey,
    AdmitCertificate,
    AdmitCoordinator,
    AdmitUser,
    AnyCommand,
    CompleteUpload,
    JoinNode,
    RenewCertificate,
    ReportHash,
    RevokeNode,
    TakeOverUpload,
    TriggerJob,
)
from metadata.protocol.queries import (
    AnyQuery,
    CheckAdmin,
    CheckJoinSecret,
    CheckJoinToken,
    CheckNewFile,
    GetContent,
    GetUser,
    ListQuery,
)
from metadata.rpc.node_health import PLACEABLE_S, NodeHealth
from runtime.clock import now_ms

_encode = msgspec.msgpack.Encoder().encode
_log = logging.getLogger(__name__)


class Service:
    """Answers calls. Everything runs on the event loop; only the driver writes."""

    def __init__(
        self,
        identity: Identity,
        driver: Driver,
        store: Store,
        view: StateView,
        *,
        authority: SigningAuthority,
        tokens: UserTokens,
        health: NodeHealth,
        snapshots: SnapshotStore,
        operations: Operations,
        digests: Digests,
        clocks: MemberClocks,
        statuses: Statuses,
    ) -> None:
        self._identity = identity
        self._driver = driver
        self._store = store
        self._view = view
        self._authority = authority
        self._health = health
        self._snapshots = snapshots
        self._operations = operations
        self._digests = digests
        self._clocks = clocks
        self._statuses = statuses
        self._callers = CallerVerifier(view, clocks.now_ms)
        self._tokens = tokens
        self._placing = NodeChooser(identity, view, health)
        self._membership = Admission(identity, store, view, health)
        self._paging = asyncio.Lock()
        self._started_s = time.monotonic()

    def check(self, peer: Peer) -> None:
        """Raise what `Admission.check` does."""
        self._membership.check(peer)

    async def recall(self, peer: Peer) -> None:
        """Record the certificate of a node that a restore has forgotten; others are left to `check`.

        Raises NotLeader, FilestoreError.
        """
        if not self._membership.is_forgotten(peer):
            return
        self._require_leader()
        certificate = CertificateRecord(
            serial=peer.serial,
            pem="",  # the node has it, and it is not requested again
            public_key_sha256="",
            not_before_ms=peer.not_before_ms,
            not_after_ms=peer.not_after_ms,
        )
        node_id = peer.identity.id
        with contextlib.suppress(Refused):  # `check` says why
            await self._change(AdmitCertificate(node_id=node_id, certificate=certificate))
            _log.warning(
                "the certificate of the node %s was issued before the restore, and is recorded again",
                node_id,
                extra={"serial": peer.serial},
            )

    async def handle(self, peer: Peer, call: AnyCall) -> bytes:
        """Return the answer in MessagePack. Raises Refused, NotLeader, or a FilestoreError."""
        self._membership.require_known(peer, call)
        match call:
            case ProposeCall():
                return await self._propose(peer, call)
            case ReadCall():
                return await self._read(call.query, peer)
            case HeartbeatCall():
                return _encode(await self._heartbeat(peer, call))
            case FollowCall():
                return _encode(await self._follow(peer, call))
            case JoinCall():
                return _encode(await self._join(call))
            case JoinCoordinatorCall():
                _require_coordinator(peer.identity)
                return _encode(await self._join_coordinator(call))
            case RenewCall():
                return _encode(await self._renew(peer, call))
            case MintCall():
                return _encode(await self._mint(call))
            case RenewTokenCall():
                return _encode(await self._renew_token(call))
            case TicketCall():
                return _encode(await self._ticket(call))
            case PlaceCall():
                return _encode(self._place(call))
            case RotateKeyCall():
                return await self._rotate_key(call)
            case AddCoordinatorCall():
                await self._require_admin(call.caller)
                self._require_address_known(call.record.address)
                return _encode(await self._operations.add(call.record))
            case RemoveCoordinatorCall():
                await self._require_admin(call.caller)
                await self._operations.remove(call.coordinator_id)
                return _encode(None)
            case TransferLeaderCall():
                await self._require_admin(call.caller)
                return _encode(await self._operations.transfer(call.target))
            case SnapshotChunkCall():
                return _encode(await self._snapshot_chunk(peer, call))
            case SnapshotCall():
                _require_coordinator(peer.identity)
                self._digests.note_lost_state(peer.identity.id)
                return _encode(self._driver.snapshot(call.index_min))
            case StatusCall():
                return _encode(self._status(call))
            case RulesCall():
                return _encode(RULES)

    async def _propose(self, peer: Peer, call: ProposeCall) -> bytes:
        self._require_leader()
        identity = peer.identity
        require_own(identity, call.command)
        self._membership.require_speaker(peer, call.command)
        command = self._callers.verify_in(call.command)
        if isinstance(command, TriggerJob):
            self._answer(CheckAdmin(caller=command.caller))  # other users need not know which jobs exist
            check_parameters(job_kind(command.job_name), command.parameters)
        if isinstance(command, AddIntermediate):
            self._answer(CheckAdmin(caller=command.caller))
            self._authority.check_intermediate(IntermediateCredential(command.pem, command.wrapped))
        if isinstance(command, TakeOverUpload) and command.holder != identity.id:
            self._require_silent(command.holder)
        stamped = self._placing.with_leader_fields(command, identity)
        reply = await self._change(stamped, call.session, call.sequence, call.acknowledged_below)
        if isinstance(command, RevokeNode):
            self._health.forget(command.node_id)
        return reply

    def _require_silent(self, node_id: str) -> None:
        """Raise Refused while the node was active recently, and its disk accepts bytes."""
        last, at_s = self._health.last(node_id), time.monotonic()
        since_s = self._started_s if last is None else last.at_s
        if last is not None and not last.heartbeat.takes_bytes:
            return
        if at_s - since_s < PLACEABLE_S and not self._health.is_cut_off(node_id, at_s=at_s):
            raise Refused(Unavailable.code, f"Node {node_id} was active less than {PLACEABLE_S:.0f} s ago.")

    def _require_leader(self) -> None:
        """Raise NotLeader: only the leader knows the time and the live nodes."""
        if not self._driver.is_leader:
            raise NotLeader(self._driver.leader)

    async def _change(
        self, command: AnyCommand, session: int = 0, sequence: int = 0, acknowledged_below: int = 0
    ) -> bytes:
        reply = await self._driver.propose(
            command, session=session, sequence=sequence, acknowledged_below=acknowledged_below
        )
        return value_of(reply)

    async def _read(self, query: AnyQuery, peer: Peer | None = None) -> bytes:
        """Return the answer behind a read barrier, for caller and `peer` as they are in the state then."""
        self._require_right_state()
        known = self._view().version
        await self._driver.read_barrier()
        if not isinstance(query, ListQuery):
            return self._read_now(query, peer, known)
        async with self._paging:  # reads of one moment share a barrier, with one turn of the loop each
            await asyncio.sleep(0)
            return self._read_now(query, peer, known)

    def _read_now(self, query: AnyQuery, peer: Peer | None, known: int) -> bytes:
        self._require_right_state()
        if peer is not None:
            self._check_again(peer, known)
        return self._answer(self._callers.verify_in(query))

    def _require_right_state(self) -> None:
        if self._digests.is_odd:
            raise Unavailable("The state of this coordinator is wrong. Ask another one.")

    def _check_again(self, peer: Peer, known: int) -> None:
        """Check a caller again that has waited: it may have been removed meanwhile, or before it asked.

        `known` is the version of the view of the first check. Raises as `check` does.
        """
        if self._view().version != known:
            self.check(peer)

    def _answer(self, query: AnyQuery) -> bytes:
        return value_of(self._store.answer(query, at_ms=self._clocks.now_ms()))

    async def _require_admin(self, caller: Caller) -> None:
        """Raise Refused or Unauthorized. A revoked token is rejected from then on, everywhere."""
        self._require_leader()
        await self._read(CheckAdmin(caller=caller))

    async def _snapshot_chunk(self, peer: Peer, call: SnapshotChunkCall) -> Chunk:
        _require_coordinator(peer.identity)
        if why := self._digests.forbids:  # the rest of an older snapshot
            raise Conflict(why)
        known = self._view().version
        chunk = await asyncio.to_thread(self._snapshots.chunk, call.index, call.term, call.offset)
        self._check_again(peer, known)
        return chunk

    async def _heartbeat(self, peer: Peer, call: HeartbeatCall) -> HeartbeatReply:
        identity, known = peer.identity, self._view().version
        if call.is_primary and identity != self._identity:
            self._clocks.receive(identity, call.at_ms)
        self._membership.require_rules(peer, call)
        if identity.role is Role.NODE and call.is_primary and self._membership.is_active_process(peer):
            self._health.receive(identity.id, call, at_s=time.monotonic(), at_ms=now_ms())
        if call.proof != PROOF_NONE:
            await self._driver.read_barrier(patient=call.proof == PROOF_SOON)
        self._check_again(peer, known)
        clocks, rules = self._clocks, self._store.rules()
        version, leader = self._store.view_version(), self._driver.leader
        return HeartbeatReply(version, leader, clocks.now_ms(), rules, clocks.kept_ms())

    async def _follow(self, peer: Peer, call: FollowCall) -> FollowReply:
        if peer.identity.role is not Role.NODE:
            raise Forbidden("Only nodes may cache records.")
        known = self._view().version
        reply = await self._driver.following.follow(call)
        self._check_again(peer, known)
        return reply

    async def _join(self, call: JoinCall) -> JoinReply:
        self._require_leader()
        await self._read(CheckJoinSecret(token_id=call.token_id, secret_sha256=call.secret_sha256))
        node_id = check_member_id(call.node_id)
        development = self._view().development
        address = check_address(call.address, development=development)
        self._require_address_known(address)
        api_port = check_port(call.api_port)
        identity = Identity(self._identity.cluster, Role.NODE, node_id)
        public_key = csr.check_csr(call.csr, identity, address=address)
        await self._read(
            CheckJoinToken(
                token_id=call.token_id,
                secret_sha256=call.secret_sha256,
                node_id=node_id,
                public_key_sha256=public_key_digest(public_key),
            )
        )
        self._require_free_place(node_id, address, api_port)
        command = JoinNode(
            token_id=call.token_id,
            secret_sha256=call.secret_sha256,
            node_id=node_id,
            address=address,
            api_port=api_port,
            certificate=self._signed(public_key, identity, address),
        )
        certificate = msgspec.msgpack.decode(await self._change(command), type=CertificateRecord)
        self._health.forget(node_id)
        return JoinReply(self._authority.root_pem, certificate.pem)

    async def _join_coordinator(self, call: JoinCoordinatorCall) -> CoordinatorRecord:
        """Admit a coordinator; a record that would be rejected consumes no token."""
        self._require_leader()
        await self._read(CheckJoinSecret(token_id=call.token_id, secret_sha256=call.secret_sha256))
        self._require_address_known(call.record.address)
        record = await self._operations.check_free(call.record)
        command = AdmitCoordinator(
            token_id=call.token_id,
            secret_sha256=call.secret_sha256,
            coordinator_id=record.coordinator_id,
            attempt_sha256=call.attempt_sha256,
        )
        await self._change(command)
        return await self._operations.add(record) if call.is_running else record

    def _require_address_known(self, address: str) -> None:
        """Raise NotInForce for a name while a coordinator may run that signs no certificate for one."""
        if not is_literal(address) and self._store.rules() < MEMBERS_ARE_NAMED:
            raise NotInForce("Some members run a version without DNS names. Give an IP address.")

    def _require_free_place(self, node_id: str, address: str, api_port: int) -> None:
        """Reject an address in use, before a mistyped one wastes the token and the name."""
        for node in self._view().nodes:
            is_there = node.address == address and api_port in (node.api_port, node.peer_port)
            if is_there and node.node_id != node_id and node.state == HEALTHY:
                raise Conflict(
                    f"The node {node.node_id} has the address {address}:{api_port}. If it is gone for "
                    "good, remove it first (`filestore node remove --force --is-gone`)."
                )

    async def _renew(self, peer: Peer, call: RenewCall) -> JoinReply:
        self._require_leader()  # another coordinator may not know the node's new address yet
        identity = peer.identity
        node = next((n for n in self._view().nodes if n.node_id == identity.id), None)
        if identity.role is not Role.NODE or node is None:
            raise Forbidden("Only nodes renew their certificates here.")
        self._membership.require_ended(peer)
        public_key = csr.check_csr(call.csr, identity, address=node.address)
        command = RenewCertificate(
            node_id=identity.id,
            proved_serial=peer.serial,
            certificate=self._signed(public_key, identity, node.address),
        )
        certificate = msgspec.msgpack.decode(await self._change(command), type=CertificateRecord)
        return JoinReply(self._authority.root_pem, certificate.pem)

    def _signed(self, public_key: "csr.PublicKey", identity: Identity, address: str) -> CertificateRecord:
        leaf = self._authority.sign_leaf(public_key, identity, address)
        return CertificateRecord(
            serial=leaf.serial,
            pem=leaf.pem,
            public_key_sha256=leaf.public_key_digest,
            not_before_ms=leaf.not_before_ms,
            not_after_ms=leaf.not_after_ms,
        )

    async def _mint(self, call: MintCall) -> MintReply:
        # required for any reply, which may be that of an earlier change
        await self._require_admin(call.caller)
        if call.ttl_seconds > SERVICE_TTL_SECONDS_MAX:
            raise InvalidRequest(f"ttl_seconds: at most {SERVICE_TTL_SECONDS_MAX}.")
        caller = self._callers.verify(call.caller)
        command = AdmitUser(caller=caller, user_id=call.user_id, roles=call.roles, groups=call.groups)
        reply = await self._change(command, call.session, call.sequence, call.acknowledged_below)
        user = msgspec.msgpack.decode(reply, type=UserRecord)
        return self._tokens.mint(user, call.ttl_seconds)

    async def _renew_token(self, call: RenewTokenCall) -> MintReply:
        self._require_leader()
        # A user who was already revoked is rejected; later revocations end the generation of the new token.
        answer = await self._read(GetUser(caller=call.caller))
        return self._tokens.renew(msgspec.msgpack.decode(answer, type=UserRecord), call.ttl_seconds)

    async def _ticket(self, call: TicketCall) -> TicketReply:
        self._require_leader()
        await self._read(GetContent(caller=call.caller, file_uuid=call.file_uuid))
        return self._tokens.ticket(self._callers.verify(call.caller), call.file_uuid, call.ttl_seconds)

    def _place(self, call: PlaceCall) -> PlaceReply:
        self._require_leader()
        caller = self._callers.verify(call.caller)
        self._answer(
            CheckNewFile(
                caller=caller,
                file_uuid=call.file_uuid,
                bucket_id=call.bucket_id,
                size_bytes=call.size_bytes,
            )
        )
        placement = self._placing.placement(call.file_uuid, call.size_bytes)
        return PlaceReply(placement, self._driver.applied_index)

    async def _rotate_key(self, call: RotateKeyCall) -> bytes:
        await self._require_admin(call.caller)
        if call.grace_seconds > TTL_SECONDS_MAX:
            raise InvalidRequest(f"grace_seconds: at most {TTL_SECONDS_MAX}.")
        key = self._authority.new_token_key()
        command = AddTokenKey(
            caller=self._callers.verify(call.caller),
            kid=key.kid,
            jwk=key.jwk,
            wrapped=key.wrapped,
            grace_ms=call.grace_seconds * 1000,
        )
        return await self._change(command, call.session, call.sequence, call.acknowledged_below)

    def _status(self, call: StatusCall) -> StatusReply:
        # Uses the local state, so that it works without a quorum too.
        self._answer(CheckAdmin(caller=self._callers.verify(call.caller)))
        return self._statuses.reply()


def _require_coordinator(identity: Identity) -> None:
    if identity.role is not Role.COORDINATOR:
        raise Forbidden("Only coordinators may fetch snapshots and bundles.")


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
