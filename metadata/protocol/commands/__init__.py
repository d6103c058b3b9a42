"""Every change to the replicated state, as data. The log holds these; `coordinator/machine` applies them.

The code that builds a command sets ids and random values, so that a retry has the same ones. The leader that
proposes it sets time (`Envelope.at_ms`) and placement. A field is only ever added, with a default: logs of
older versions must decode for ever. Fields hold values that were validated at the edge; the machine checks
them against state.
"""

import msgspec
from msgspec import Struct

from metadata.protocol.commands.access import (
    AdmitUser,
    CreateBucket,
    CreatePublicToken,
    DeleteBucket,
    DeleteUser,
    GrantPermission,
    PutUser,
    RevokePublicToken,
    RevokeUser,
    UpdateBucket,
    WithdrawPermission,
)
from metadata.protocol.commands.blobs import (
    COLLECT_GRACE_MS,
    AddReplica,
    Collect,
    CollectOverQuota,
    RecountReplicas,
    ReleaseReplica,
    ReportDamaged,
    ReportDropped,
    ReportLost,
    ReportOrphans,
)
from metadata.protocol.commands.cluster import (
    COORDINATORS_LISTED_MAX,
    HASH_ROWS_MAX,
    SESSION_NUMBER_MIN,
    SESSIONS_MAX,
    AddIntermediate,
    AddTokenKey,
    AdmitCertificate,
    AdmitCoordinator,
    AnnounceNode,
    Bootstrap,
    CreateJoinToken,
    DeleteJoinToken,
    DrainNode,
    ForgetInstance,
    HashState,
    HashWhole,
    JoinNode,
    MarkNode,
    MoveNode,
    OpenSession,
    RaiseRules,
    RecordCoordinators,
    RecordRestore,
    RemoveNode,
    RenewCertificate,
    ReportHash,
    RevokeNode,
)
from metadata.protocol.commands.files import (
    CompleteUpload,
    CreateBackup,
    CreateFile,
    CreatePartial,
    CreateProjectFile,
    CreateVm,
    DeclareSize,
    DeleteFile,
    PlaceUpload,
    RecordProgress,
    RestartUpload,
    RewindUpload,
    StoredContent,
    TakeOverUpload,
    TerminateUpload,
    UpdateBackup,
    UpdateFile,
    UpdateProjectFile,
    UpdateVm,
)
from metadata.protocol.commands.jobs import (
    CANCELLED,
    EXPIRE_ROWS_MAX,
    CancelRun,
    Expire,
    RecordRun,
    StartRun,
    TriggerJob,
)
from metadata.protocol.commands.root import Command
from runtime.bounds import Count

__all__ = [
    "CANCELLED",
    "COLLECT_GRACE_MS",
    "COORDINATORS_LISTED_MAX",
    "EXPIRE_ROWS_MAX",
    "HASH_ROWS_MAX",
    "NODE_COMMANDS",
    "OWN_COMMANDS",
    "SESSIONS_MAX",
    "SESSION_ENDED",
    "SESSION_NUMBER_MIN",
    "AddIntermediate",
    "AddReplica",
    "AddTokenKey",
    "AdmitCertificate",
    "AdmitCoordinator",
    "AdmitUser",
    "AnnounceNode",
    "AnyCommand",
    "Bootstrap",
    "CancelRun",
    "Collect",
    "CollectOverQuota",
    "Command",
    "CompleteUpload",
    "CreateBackup",
    "CreateBucket",
    "CreateFile",
    "CreateJoinToken",
    "CreatePartial",
    "CreateProjectFile",
    "CreatePublicToken",
    "CreateVm",
    "DeclareSize",
    "DeleteBucket",
    "DeleteFile",
    "DeleteJoinToken",
    "DeleteUser",
    "DrainNode",
    "Envelope",
    "Expire",
    "ForgetInstance",
    "GrantPermission",
    "HashState",
    "HashWhole",
    "JoinNode",
    "MarkNode",
    "MoveNode",
    "OpenSession",
    "PlaceUpload",
    "PutUser",
    "RaiseRules",
    "RecordCoordinators",
    "RecordProgress",
    "RecordRestore",
    "RecordRun",
    "RecountReplicas",
    "ReleaseReplica",
    "RemoveNode",
    "RenewCertificate",
    "Reply",
    "ReportDamaged",
    "ReportDropped",
    "ReportHash",
    "ReportLost",
    "ReportOrphans",
    "RestartUpload",
    "RevokeNode",
    "RevokePublicToken",
    "RevokeUser",
    "RewindUpload",
    "StartRun",
    "StoredContent",
    "TakeOverUpload",
    "TerminateUpload",
    "TriggerJob",
    "UpdateBackup",
    "UpdateBucket",
    "UpdateFile",
    "UpdateProjectFile",
    "UpdateVm",
    "WithdrawPermission",
    "decode_envelope",
    "encode_envelope",
]

SESSION_ENDED = "session_ended"  # the refusal code of a change whose session is gone

AnyCommand = (
    Bootstrap
    | OpenSession
    | AddIntermediate
    | CreateJoinToken
    | DeleteJoinToken
    | JoinNode
    | AdmitCoordinator
    | RenewCertificate
    | AdmitCertificate
    | RecordRestore
    | AnnounceNode
    | DrainNode
    | MoveNode
    | RemoveNode
    | RevokeNode
    | ForgetInstance
    | AddTokenKey
    | RecordCoordinators
    | RaiseRules
    | HashState
    | HashWhole
    | ReportHash
    | CreateProjectFile
    | CreateVm
    | CreateBackup
    | CreatePartial
    | UpdateProjectFile
    | UpdateVm
    | UpdateBackup
    | DeleteFile
    | RecordProgress
    | RewindUpload
    | TakeOverUpload
    | DeclareSize
    | CompleteUpload
    | TerminateUpload
    | PlaceUpload
    | RestartUpload
    | AdmitUser
    | PutUser
    | DeleteUser
    | RevokeUser
    | CreateBucket
    | UpdateBucket
    | DeleteBucket
    | GrantPermission
    | WithdrawPermission
    | CreatePublicToken
    | RevokePublicToken
    | TriggerJob
    | CancelRun
    | StartRun
    | RecordRun
    | Expire
    | MarkNode
    | Collect
    | CollectOverQuota
    | ReleaseReplica
    | AddReplica
    | ReportDropped
    | ReportDamaged
    | ReportLost
    | ReportOrphans
    | RecountReplicas
)

NODE_COMMANDS: tuple[type[Command], ...] = (
    OpenSession,
    AddIntermediate,
    CreateJoinToken,
    DeleteJoinToken,
    AnnounceNode,
    DrainNode,
    MoveNode,
    RemoveNode,
    RevokeNode,
    ForgetInstance,
    CreateProjectFile,
    CreateVm,
    CreateBackup,
    CreatePartial,
    UpdateProjectFile,
    UpdateVm,
    UpdateBackup,
    DeleteFile,
    RecordProgress,
    RewindUpload,
    TakeOverUpload,
    DeclareSize,
    CompleteUpload,
    TerminateUpload,
    RestartUpload,
    PutUser,
    DeleteUser,
    RevokeUser,
    CreateBucket,
    UpdateBucket,
    DeleteBucket,
    GrantPermission,
    WithdrawPermission,
    CreatePublicToken,
    RevokePublicToken,
    TriggerJob,
    CancelRun,
    AddReplica,
    ReportDropped,
    ReportDamaged,
    ReportLost,
    ReportOrphans,
)  # what a node may propose as it is; joining, renewing and minting pass through calls that check more

OWN_COMMANDS = (
    AnnounceNode,
    RecordProgress,
    RewindUpload,
    AddReplica,
    ReportDropped,
    ReportDamaged,
    ReportLost,
    ReportOrphans,
)  # of these: what it may propose for itself only

# Each changes, or looks at, up to a page of rows, which may lie anywhere in the state.
LONG_COMMANDS = (
    HashState,
    Expire,
    Collect,
    CollectOverQuota,
    RecountReplicas,
    ReportDropped,
    ReportLost,
    ReportOrphans,
)


class Envelope(Struct, frozen=True, array_like=True):
    """One log entry. `session` 0 means no duplicate suppression (the command is idempotent).

    `acknowledged_below`: the client has seen the replies of all smaller sequences, so they can be forgotten.
    """

    session: Count
    sequence: Count
    acknowledged_below: Count
    at_ms: Count
    command: AnyCommand


class Reply(Struct, frozen=True, array_like=True):
    """The result of applying a command or a query.

    `refusal` is an error code, or "" with a `value`.
    """

    refusal: str
    details: str
    value: msgspec.Raw


_ENVELOPE_ENCODER = msgspec.msgpack.Encoder()
_ENVELOPE_DECODER = msgspec.msgpack.Decoder(Envelope)


class _Kind(Struct, frozen=True, rename={"tag": "type"}):
    """The kind of an encoded command."""

    tag: str


class _EnvelopeOf(Struct, frozen=True, array_like=True):
    session: Count
    sequence: Count
    acknowledged_below: Count
    at_ms: Count
    command: _Kind


_KIND_DECODER = msgspec.msgpack.Decoder(_EnvelopeOf)
_LONG_TAGS = frozenset(command.__struct_config__.tag for command in LONG_COMMANDS)


def encode_envelope(envelope: Envelope) -> bytes:
    """The bytes of a log entry (MessagePack)."""
    return _ENVELOPE_ENCODER.encode(envelope)


def decode_envelope(data: bytes) -> Envelope:
    """The envelope in a log entry. Raises msgspec.MsgspecError on bytes that no version of ours wrote."""
    return _ENVELOPE_DECODER.decode(data)


def is_long(data: bytes) -> bool:
    """Whether a log entry's command is one of LONG_COMMANDS; the rest of it is not decoded."""
    return _KIND_DECODER.decode(data).command.tag in _LONG_TAGS
