"""The RPC between members of the cluster: method names, what they take and what they answer.

`propose` and `read` carry commands and queries; the others need something that only a coordinator has (the
CA key, the token signing key, its clock). Every one of these travels over mutual TLS between members.

Tested by tests/unit/metadata/rpc/test_client.py.
"""

from typing import Final

from msgspec import Struct

from metadata.model.records import Caller, CoordinatorRecord, JobRunRecord, NodeRecord
from metadata.model.replica_records import ReplicaCounts
from metadata.protocol.commands import AnyCommand
from metadata.protocol.queries import AnyQuery
from runtime.bounds import Count, Names, NodeIds, Pem, Text

DISK_OK, DISK_LOW, DISK_FULL, DISK_FAILED = "ok", "low", "full", "failed"
CALL_TIMEOUT_S = 5.0  # a client waits no longer for an answer before it says 503


class ProposeCall(Struct, frozen=True, tag="propose"):
    """A command with its duplicate suppression; see metadata.protocol.commands.Envelope. Leader only."""

    session: Count
    sequence: Count
    acknowledged_below: Count
    command: AnyCommand


class ReadCall(Struct, frozen=True, tag="read"):
    """A linearizable query; any coordinator answers."""

    query: AnyQuery


class JoinCall(Struct, frozen=True, tag="join"):
    """A node asks to join. Leader only."""

    token_id: Text
    secret_sha256: Text
    node_id: Text
    address: Text
    api_port: Count
    csr: Pem


class JoinCoordinatorCall(Struct, frozen=True, tag="join_coordinator"):
    """A machine becomes a coordinator with a valid token. Leader only, from coordinators alone.

    `is_running`: it runs, and is added to the group; before that, its token is consumed. `attempt_sha256`:
    the machine that started with the token may continue with it. Answers the CoordinatorRecord.
    """

    token_id: Text
    secret_sha256: Text
    attempt_sha256: Text
    record: CoordinatorRecord
    is_running: bool


class JoinReply(Struct, frozen=True):
    """`ca_cert` is the root bundle, `node_cert` the leaf and its intermediate, all PEM."""

    ca_cert: str
    node_cert: str


class RenewCall(Struct, frozen=True, tag="renew"):
    """The node on this connection asks for a new certificate; its identity is the connection's.

    Answers JoinReply.
    """

    csr: Pem


class MintCall(Struct, frozen=True, tag="mint"):
    """An admin mints a token for a user. `ttl_seconds` 0 means the default. Leader only."""

    caller: Caller
    user_id: Text
    roles: Names | None
    groups: Names | None
    ttl_seconds: Count
    session: Count
    sequence: Count
    acknowledged_below: Count


class RenewTokenCall(Struct, frozen=True, tag="renew_token"):
    """A user asks for another token of its own, with the rights that it has now. Leader only, no entry.

    `ttl_seconds` 0 means the default. Answers a MintReply.
    """

    caller: Caller
    ttl_seconds: Count


class TicketCall(Struct, frozen=True, tag="ticket"):
    """A user who may read a file asks for a ticket to its content. Leader only, no entry.

    Answers a TicketReply.
    """

    caller: Caller
    file_uuid: Text
    ttl_seconds: Count


class PlaceCall(Struct, frozen=True, tag="place"):
    """Which nodes would take the bytes of a file that the caller may create. Leader only, no entry.

    Nothing is promised: its creation decides. Answers a PlaceReply.
    """

    caller: Caller
    file_uuid: Text
    bucket_id: Text
    size_bytes: Count


class RotateKeyCall(Struct, frozen=True, tag="rotate_token_key"):
    """An admin lets another key sign user tokens; those before end `grace_seconds` later. Leader only.

    Answers a TokenKeyRecord.
    """

    caller: Caller
    grace_seconds: Count
    session: Count
    sequence: Count
    acknowledged_below: Count


class PlaceReply(Struct, frozen=True):
    """`placement` as that of an upload; `log_index`: one of the log, for `StoredContent.as_of`."""

    placement: list[str]
    log_index: int


class MintReply(Struct, frozen=True):
    """The token is shown once."""

    token: str
    user_id: str
    expires_at_ms: int
    roles: list[str]
    groups: list[str]


class TicketReply(Struct, frozen=True):
    """The ticket is shown once."""

    ticket: str
    expires_at_ms: int


PROOF_NOW: Final = 0  # a read barrier of its own
PROOF_SOON: Final = 1  # one that goes along with what a leader sends anyway
PROOF_NONE: Final = 2


class HeartbeatCall(Struct, frozen=True, tag="heartbeat"):
    """A heartbeat of a node. The certificate decides which node it is, not a field of the call.

    `takes_bytes`: its disk was written successfully in the last while. `scrubbed_since_ms`: all its replicas
    were read from the disk, or arrived, after this time; 0 if unknown.

    Each process of a node sends its own heartbeats, to learn of a new view. Only the first process speaks for
    the node.
    """

    free_bytes: Count
    total_bytes: Count
    uploads: Count
    is_primary: bool = True
    takes_bytes: bool = True
    scrubbed_since_ms: Count = 0
    at_ms: Count = 0  # its clock when this was sent; 0 if it does not tell
    custody_stopped: Names = []  # passes that would have given up too many blobs at once
    unreachable: NodeIds = []  # nodes that do not answer this one
    disk_fails: bool = False  # it takes no bytes, and not for want of room
    poison: Names = []  # the first of what cannot be used on its disk, each with why
    poison_count: Count = 0
    disk_full: bool = False  # it takes no bytes for want of room, and for nothing else
    web_certificate_ends_ms: Count = 0  # that for browsers; 0 without one
    version: Text = ""  # of the product; until 0.3.0: "" from 0.1.0
    rules: Count = 0  # the newest that this node knows, as in RulesCall; until 0.3.0: 0 from 0.1.0
    blocked_dead_bytes: Count = 0  # of deleted small files, which cannot be given back for want of room
    blocked_wanted_bytes: Count = 0  # how much more must be free before some of them can
    proof: Count = PROOF_NOW  # of the answer


class HeartbeatReply(Struct, frozen=True):
    """The answer to a heartbeat.

    If PROOF_NONE was requested, view and leader are only this coordinator's belief. `at_ms` is the time of
    the cluster. Only records that have also ended by `kept_ms` may be deleted.
    """

    view_version: int
    leader: str
    at_ms: int
    rules: int = 0  # in force, by the state of this coordinator; until 0.3.0: 0 from 0.1.0
    kept_ms: int = 0  # see runtime/kept_time.py; until 0.3.0: 0 from 0.1.0


class FollowCall(Struct, frozen=True, tag="follow"):
    """A node process asks which cached records it must drop, and for a lease on the others.

    Leader only. It is answered when there is news, after POLL_S at the latest.

    `subscriber` is random, one for each process. `term` and `acknowledged` are those of the last FollowReply,
    which was fully processed. `is_leaving`: the process caches nothing any more. See
    coordinator/member/record_leases.py.
    """

    subscriber: Text
    term: Count
    acknowledged: Count
    is_leaving: bool = False


class FollowReply(Struct, frozen=True):
    """The answer to a FollowCall: the keys that must not be cached, and the lease on the others.

    Records with a blocked key may not be cached until an answer of the same term no longer lists the key.
    `lease_s` counts from when the call was sent, 0 for none: other records may be cached until then. If the
    term has changed, no cached record may be used.
    """

    term: int
    version: int
    blocked: list[str]
    lease_s: float


class AddCoordinatorCall(Struct, frozen=True, tag="add_coordinator"):
    """An admin lets a coordinator in, as a learner first. Leader only. Answers the CoordinatorRecord.

    The same record again changes nothing.
    """

    caller: Caller
    record: CoordinatorRecord


class RemoveCoordinatorCall(Struct, frozen=True, tag="remove_coordinator"):
    """An admin takes a coordinator out for ever. Leader only.

    One that was removed already is no error: the answer to the first request may have been lost.
    """

    caller: Caller
    coordinator_id: Text


class TransferLeaderCall(Struct, frozen=True, tag="transfer_leader"):
    """An admin transfers the lead to `target`, or to the most advanced coordinator. Leader only.

    Answers the id of the new leader.
    """

    caller: Caller
    target: Text


class SnapshotChunkCall(Struct, frozen=True, tag="snapshot_chunk"):
    """A coordinator asks for a piece of the snapshot that this one offered. Answers a Chunk."""

    index: Count
    term: Count
    offset: Count


class SnapshotCall(Struct, frozen=True, tag="snapshot"):
    """A coordinator that lost its state asks for a snapshot of at least this entry.

    Answers a SnapshotMeta, or None while one is being made; Unavailable when the state here is older,
    Conflict while none may be handed out.
    """

    index_min: Count


class StatusCall(Struct, frozen=True, tag="status"):
    """Ask for a coordinator's view of the cluster. Admins only.

    Not linearizable: it is answered without a majority too.
    """

    caller: Caller


class FollowerStatus(Struct, frozen=True, kw_only=True):
    """The leader's view of a member of the group.

    The member is durable up to `match`, and receives entries by `state` (probe, replicate, snapshot; leader
    for itself). It is `active` if it answered within an election timeout.
    """

    id: str
    match: int
    state: str
    active: bool


class CoordinatorStatus(Struct, frozen=True, kw_only=True):
    """The view of one member of the Raft group of itself.

    `followers`: only from a leader, including itself. `disk_full`: it accepts no changes until there is room.
    `recovering`: it has lost the end of its log, and neither votes nor leads until a leader of a later term
    has sent it the missing entries. `clock_wrong`: most others call its clock wrong, so it leads only if no
    other can. `diverged`: members whose state is known to be wrong. `differ`: members differ, and it is not
    known which one is wrong. `cache_leases`: how many node processes may cache records, 0 except from a
    leader. `clock_jump_ms`: how far most clocks have jumped ahead of the kept time, usually 0.
    """

    id: str
    role: str
    term: int
    leader: str
    commit: int
    applied: int
    last_index: int
    disk_full: bool = False
    clock_wrong: bool = False
    followers: list[FollowerStatus] = []
    diverged: list[str] = []
    differ: bool = False
    cache_leases: int = 0
    recovering: bool = False
    clock_jump_ms: int = 0


class NodeStatus(Struct, frozen=True, kw_only=True):
    """The answering coordinator's view of a node.

    `state`: healthy, draining (healthy, and being emptied), unreachable (most other nodes cannot connect to
    it), suspect (no heartbeat for 10 s), down (by the log, or no heartbeat for 10 min), returning (sending
    heartbeats again, but its replicas are not compared with the log yet), unheard (no heartbeat since this
    coordinator was started), joined (has never run).

    `disk`: ok; low, if only the reserve is left; full, if nothing is left; failed, if it cannot be written.
    `copy_failures`: what the node repeatedly failed to do when it had to create or send replicas, as seen by
    the leader; "" for nothing. `since_ms`: see `metadata.rpc.node_health.LastHeartbeat`. `rival`: why a
    second process that claims to be this node is rejected, "" if there is none.
    """

    node: NodeRecord
    state: str
    heard_ms_ago: int
    free_bytes: int
    total_bytes: int
    uploads: int
    clock_offset_ms: int | None = None  # its clock less what most show; None while it is not known
    disk: str = DISK_OK
    scrubbed_since_ms: int = 0  # see HeartbeatCall
    custody_stopped: list[str] = []
    copy_failures: str = ""
    poison: list[str] = []
    poison_count: int = 0
    since_ms: dict[str, int] = {}
    rival: str = ""
    version: str = ""  # see HeartbeatCall
    rules: int = 0  # of the rules, as above
    is_too_old: bool = False  # its heartbeats are refused, as it does not know the rules in force
    replicas: int = 0  # that count, as the log has them
    certificate_ends_at_ms: int = 0  # of the newest that lives; 0 for none
    blocked_dead_bytes: int = 0  # see HeartbeatCall
    blocked_wanted_bytes: int = 0


INTERMEDIATE, ROOT = "intermediate", "root"  # holders of certificates that are no members
FOR_BROWSERS = " for browsers"  # behind a member, whose other certificate that is


class CertificateEnd(Struct, frozen=True):
    """A certificate that expires soon, of ROOT, INTERMEDIATE, `coordinator ID` or `node ID`.

    FOR_BROWSERS is appended to a member for its certificate for browsers.
    """

    holder: str
    expires_at_ms: int


class StatusReply(Struct, frozen=True, kw_only=True):
    """The cluster as this coordinator sees it; `coordinators` are the voters and learners.

    `schedules`: seconds between two runs of each job, by this coordinator's settings. `at_ms` is its clock;
    `correction_ms` is to be added to get the time of most clocks.

    `runs` those of jobs that have not ended; `certificates` those that end soon;
    `replicas` how the blobs stand; `replicas_wanted` of each blob.
    """

    cluster: str
    coordinator: CoordinatorStatus
    coordinators: list[CoordinatorRecord]
    nodes: list[NodeStatus]
    files: int
    blobs: int
    blob_bytes: int
    at_ms: int = 0
    correction_ms: int = 0
    write_quorum: int = 0
    replicas_wanted: int = 0
    runs: list[JobRunRecord] = []
    certificates: list[CertificateEnd] = []
    replicas: ReplicaCounts | None = None
    schedules: dict[str, float] = {}
    version: str = ""  # of the product; until 0.3.0: "" from 0.1.0
    rules: int = 0  # in force, by the state of this coordinator; until 0.3.0: 0 from 0.1.0
    rules_known: int = 0  # the newest that this coordinator knows
    certificate_ends_at_ms: int = 0  # of this coordinator's own; 0 while it cannot be read


class RulesCall(Struct, frozen=True, tag="rules"):
    """The newest rules that this coordinator knows (`metadata/model/rules.py`): a number."""


AnyCall = (
    ProposeCall
    | ReadCall
    | JoinCall
    | JoinCoordinatorCall
    | RenewCall
    | MintCall
    | RenewTokenCall
    | TicketCall
    | PlaceCall
    | RotateKeyCall
    | HeartbeatCall
    | FollowCall
    | AddCoordinatorCall
    | RemoveCoordinatorCall
    | TransferLeaderCall
    | SnapshotChunkCall
    | StatusCall
    | RulesCall
    | SnapshotCall
)
