"""Every change to the replicated state, as data. The log holds these; `coordinator/machine` applies them.

Ids and random values are stamped in by whoever builds the command, so that a retry carries the same ones;
time (`Envelope.at_ms`) and placement by the leader that proposes it. A field is only ever added, with a
default: logs of older versions must decode for ever. Fields hold what was validated at the edge; the
machine checks them against state.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from coordinator.bounds import Count, Names, NodeIds, Text
from coordinator.records import Caller, CertificateRecord, CoordinatorRecord

SESSION_ENDED = "session_ended"  # the refusal code of a change whose session is gone
COORDINATORS_LISTED_MAX = 64  # voters and learners; far beyond what Raft admits
HASH_ROWS_MAX = 100_000  # in one slice: a second of every member's time
SESSIONS_MAX = 4096  # client processes with duplicate suppression; the longest unused goes first


class Command(Struct, frozen=True, kw_only=True, tag_field="type"):
    """The root of all commands."""


class Bootstrap(Command, frozen=True, kw_only=True, tag="bootstrap"):
    """The first entry of every log: the cluster as `filestore coordinator init` made it."""

    cluster: str
    root_pem: str
    members: list[CoordinatorRecord]
    replicas: int
    write_quorum: int
    development: bool
    intermediate_pem: str
    intermediate_wrapped: bytes
    user_token_kid: str
    user_token_jwk: dict[str, str]
    user_token_wrapped: bytes
    admin_user_id: str


class OpenSession(Command, frozen=True, kw_only=True, tag="open_session"):
    """A client process asks for duplicate suppression; replies with the session number (the log index)."""

    nonce: Text


class AdmitUser(Command, frozen=True, kw_only=True, tag="admit_user"):
    """Before a token is minted: create the user or update its roles and groups (None leaves them).

    Admin only.
    """

    caller: Caller
    user_id: Text
    roles: Names | None
    groups: Names | None


class CreateJoinToken(Command, frozen=True, kw_only=True, tag="create_join_token"):
    """Admin only. `node_id` "" admits any id. Lives `ttl_seconds` from the leader's time."""

    caller: Caller
    token_id: Text
    secret_sha256: Text
    node_id: Text
    uses_max: Count
    ttl_seconds: Count


class DeleteJoinToken(Command, frozen=True, kw_only=True, tag="delete_join_token"):
    """Admin only."""

    caller: Caller
    token_id: Text


class JoinNode(Command, frozen=True, kw_only=True, tag="join_node"):
    """Check the token, consume one use, register the node and its certificate: together or not at all.

    The same token, id and key again within ten minutes replies with the certificate of the first time. A
    taken id is a conflict unless `proved_serial` names a live certificate of that node, whose possession
    the caller has proved.
    """

    token_id: Text
    secret_sha256: Text
    node_id: Text
    address: Text
    api_port: Count
    certificate: CertificateRecord
    proved_serial: Text = ""


class RenewCertificate(Command, frozen=True, kw_only=True, tag="renew_certificate"):
    """A node that holds the live certificate `proved_serial` gets a new one; the old one ends by itself."""

    node_id: Text
    proved_serial: Text
    certificate: CertificateRecord


class AnnounceNode(Command, frozen=True, kw_only=True, tag="announce_node"):
    """A node tells where its peers reach it. Only proposed for the node that its certificate names."""

    node_id: Text
    peer_port: Count
    zone: Text
    weight: Count


class CreateProjectFile(Command, frozen=True, kw_only=True, tag="create_project_file"):
    """The file record, its project row and its upload: one change. Replies with an UploadRecord."""

    caller: Caller
    file_uuid: Text
    bucket_id: Text
    filename: Text
    content_type: Text
    size_bytes: Count | None
    expected_sha256: Text
    retention_hours: Count | None
    project_id: Text
    project_name: Text
    version_tag: Text
    compression: Text
    include_images: bool
    include_snapshots: bool
    is_read_only: bool
    keep_compute_ids: bool
    reset_mac_addresses: bool
    # Stamped by the leader: the nodes that take the bytes, the first of them from the client.
    placement: NodeIds = []


class UpdateProjectFile(Command, frozen=True, kw_only=True, tag="update_project_file"):
    """Needs write. None leaves a field as it is. Replies with the ProjectFileRecord."""

    caller: Caller
    file_uuid: Text
    project_name: Text | None = None
    version_tag: Text | None = None
    compression: Text | None = None
    include_images: bool | None = None
    include_snapshots: bool | None = None
    is_read_only: bool | None = None
    keep_compute_ids: bool | None = None
    reset_mac_addresses: bool | None = None


class DeleteFile(Command, frozen=True, kw_only=True, tag="delete_file"):
    """Needs admin on the file (its owner has it). The record goes, the blob loses a reference."""

    caller: Caller
    file_uuid: Text
    kind: Text  # 'project_file', or '' for any


class RecordProgress(Command, frozen=True, kw_only=True, tag="record_progress"):
    """Bytes of an upload became durable on `node_id`: pending becomes uploading, the expiry moves on.

    Needs write.
    """

    caller: Caller
    file_uuid: Text
    node_id: Text
    offset_bytes: Count


class DeclareSize(Command, frozen=True, kw_only=True, tag="declare_size"):
    """The size of an upload that began without one (tus creation-defer-length). Needs write."""

    caller: Caller
    file_uuid: Text
    size_bytes: Count


class CompleteUpload(Command, frozen=True, kw_only=True, tag="complete_upload"):
    """The content is whole and durable on `replicas`: the file becomes available. Needs write, checked here
    again.

    Replies with the ContentRecord; a repeated completion with the same content replies the same.
    """

    caller: Caller
    file_uuid: Text
    blob_sha256: Text
    size_bytes: Count
    replicas: NodeIds


class TerminateUpload(Command, frozen=True, kw_only=True, tag="terminate_upload"):
    """Give up an upload that has not ended; its record goes. Needs write. A finished file is a conflict."""

    caller: Caller
    file_uuid: Text


class RecordCoordinators(Command, frozen=True, kw_only=True, tag="record_coordinators"):
    """The whole new list of voters and learners; who is no longer in it becomes a tombstone. Never refused.

    The payload of a membership entry of Raft: the state must follow what the log has decided.
    """

    coordinators: Annotated[list[CoordinatorRecord], Meta(max_length=COORDINATORS_LISTED_MAX)]


class HashState(Command, frozen=True, kw_only=True, tag="hash_state"):
    """Hash the next slice of the state, at most `rows_max` rows of one table. Replies with a StateHash."""

    rows_max: Annotated[int, Meta(ge=1, le=HASH_ROWS_MAX)] = 2000


class ReportHash(Command, frozen=True, kw_only=True, tag="report_hash"):
    """A coordinator tells its digest to all others, at one place in the log. Replies with a HashReport.

    Changes nothing. Only proposed by the coordinator that it names.
    """

    coordinator_id: Text
    log_index: Count
    digest: Text


AnyCommand = (
    Bootstrap
    | OpenSession
    | AdmitUser
    | CreateJoinToken
    | DeleteJoinToken
    | JoinNode
    | RenewCertificate
    | AnnounceNode
    | CreateProjectFile
    | UpdateProjectFile
    | DeleteFile
    | RecordProgress
    | DeclareSize
    | CompleteUpload
    | TerminateUpload
    | RecordCoordinators
    | HashState
    | ReportHash
)

NODE_COMMANDS: tuple[type[Command], ...] = (
    OpenSession,
    CreateJoinToken,
    DeleteJoinToken,
    AnnounceNode,
    CreateProjectFile,
    UpdateProjectFile,
    DeleteFile,
    RecordProgress,
    DeclareSize,
    CompleteUpload,
    TerminateUpload,
)  # what a node may propose as it is; joining, renewing and minting pass through calls that check more


class Envelope(Struct, frozen=True, array_like=True):
    """One log entry. `session` 0 means no duplicate suppression (the command is idempotent by itself).

    `acknowledged_below`: the client has seen the replies of all smaller sequences, so they can be forgotten.
    """

    session: Count
    sequence: Count
    acknowledged_below: Count
    at_ms: Count
    command: AnyCommand


class Reply(Struct, frozen=True, array_like=True):
    """What applying a command or a query came to: `refusal` is an error code, or "" with a `value`."""

    refusal: str
    details: str
    value: msgspec.Raw


_ENVELOPE_ENCODER = msgspec.msgpack.Encoder()
_ENVELOPE_DECODER = msgspec.msgpack.Decoder(Envelope)


def encode_envelope(envelope: Envelope) -> bytes:
    """The bytes of a log entry (MessagePack)."""
    return _ENVELOPE_ENCODER.encode(envelope)


def decode_envelope(data: bytes) -> Envelope:
    """The envelope in a log entry. Raises msgspec.MsgspecError on bytes that no version of ours wrote."""
    return _ENVELOPE_DECODER.decode(data)
