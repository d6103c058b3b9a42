"""Every change to the replicated state, as data. The log holds these; `coordinator/machine` applies them.

Ids and random values are stamped in by whoever builds the command, so that a retry carries the same ones;
time (`Envelope.at_ms`) and placement by the leader that proposes it. A field is only ever added, with a
default: logs of older versions must decode for ever. Fields hold what was validated at the edge; the
machine checks them against state.
"""

import msgspec
from msgspec import Struct

from coordinator.records import Caller, CertificateRecord, CoordinatorRecord

SESSION_ENDED = "session_ended"  # the refusal code of a change whose session is gone
SESSIONS_MAX = 4096  # client processes with duplicate suppression; the longest unused goes first
COMMAND_BYTES_MAX = 1 << 20  # an API body is at most 1 MiB, and its command is never larger


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

    nonce: str


class AdmitUser(Command, frozen=True, kw_only=True, tag="admit_user"):
    """Before a token is minted: create the user or update its roles and groups (None leaves them).

    Admin only.
    """

    caller: Caller
    user_id: str
    roles: list[str] | None
    groups: list[str] | None


class CreateJoinToken(Command, frozen=True, kw_only=True, tag="create_join_token"):
    """Admin only. `node_id` "" admits any id. Lives `ttl_seconds` from the leader's time."""

    caller: Caller
    token_id: str
    secret_sha256: str
    node_id: str
    uses_max: int
    ttl_seconds: int


class DeleteJoinToken(Command, frozen=True, kw_only=True, tag="delete_join_token"):
    """Admin only."""

    caller: Caller
    token_id: str


class JoinNode(Command, frozen=True, kw_only=True, tag="join_node"):
    """Check the token, consume one use, register the node and its certificate: together or not at all.

    The same token, id and key again within ten minutes replies with the certificate of the first time. A
    taken id is a conflict unless `proved_serial` names a live certificate of that node, whose possession
    the caller has proved.
    """

    token_id: str
    secret_sha256: str
    node_id: str
    address: str
    api_port: int
    certificate: CertificateRecord
    proved_serial: str = ""


class RenewCertificate(Command, frozen=True, kw_only=True, tag="renew_certificate"):
    """A node that holds the live certificate `proved_serial` gets a new one; the old one ends by itself."""

    node_id: str
    proved_serial: str
    certificate: CertificateRecord


class AnnounceNode(Command, frozen=True, kw_only=True, tag="announce_node"):
    """A node tells where its peers reach it. Only proposed for the node that its certificate names."""

    node_id: str
    peer_port: int
    zone: str
    weight: int


class CreateProjectFile(Command, frozen=True, kw_only=True, tag="create_project_file"):
    """The file record, its project row and its upload: one change. Replies with an UploadRecord."""

    caller: Caller
    file_uuid: str
    bucket_id: str
    filename: str
    content_type: str
    size_bytes: int | None
    expected_sha256: str
    retention_hours: int | None
    project_id: str
    project_name: str
    version_tag: str
    compression: str
    include_images: bool
    include_snapshots: bool
    is_read_only: bool
    keep_compute_ids: bool
    reset_mac_addresses: bool
    placement: list[
        str
    ] = []  # stamped by the leader: the nodes that take the bytes, the first of them from the client


class UpdateProjectFile(Command, frozen=True, kw_only=True, tag="update_project_file"):
    """Needs write. None leaves a field as it is. Replies with the ProjectFileRecord."""

    caller: Caller
    file_uuid: str
    project_name: str | None = None
    version_tag: str | None = None
    compression: str | None = None
    include_images: bool | None = None
    include_snapshots: bool | None = None
    is_read_only: bool | None = None
    keep_compute_ids: bool | None = None
    reset_mac_addresses: bool | None = None


class DeleteFile(Command, frozen=True, kw_only=True, tag="delete_file"):
    """Needs admin on the file (its owner has it). The record goes, the blob loses a reference."""

    caller: Caller
    file_uuid: str
    kind: str  # 'project_file', or '' for any


class RecordProgress(Command, frozen=True, kw_only=True, tag="record_progress"):
    """Bytes of an upload became durable on `node_id`: pending becomes uploading, the expiry moves on.

    Needs write.
    """

    caller: Caller
    file_uuid: str
    node_id: str
    offset_bytes: int


class DeclareSize(Command, frozen=True, kw_only=True, tag="declare_size"):
    """The size of an upload that began without one (tus creation-defer-length). Needs write."""

    caller: Caller
    file_uuid: str
    size_bytes: int


class CompleteUpload(Command, frozen=True, kw_only=True, tag="complete_upload"):
    """The content is whole and durable on `replicas`: the file becomes available. Needs write, checked here
    again.

    Replies with the ContentRecord; a repeated completion with the same content replies the same.
    """

    caller: Caller
    file_uuid: str
    blob_sha256: str
    size_bytes: int
    replicas: list[str]


class TerminateUpload(Command, frozen=True, kw_only=True, tag="terminate_upload"):
    """Give up an upload that has not ended; its record goes. Needs write. A finished file is a conflict."""

    caller: Caller
    file_uuid: str


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

    session: int
    sequence: int
    acknowledged_below: int
    at_ms: int
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
