"""Determine which records cached by nodes a command may invalidate. Pure: it does not read the state.

Nodes cache answers of GetContent to a caller under four keys: the file's, the caller's, the bucket's, and
EVERY_KEY. A command is classified by what it changes in such an answer. Rejections are never cached, and
neither is an answer that expires by time (`ContentRecord.is_lasting`). So a command that only adds something
(a creation, the end of an upload, a new bucket) invalidates nothing. The places of replicas may change under
a record: a reader that finds none of them asks again.
"""

from collections.abc import Callable
from typing import Any, Final

from msgspec import UNSET

from metadata.model.records import Caller, FileRecord
from metadata.protocol import commands
from metadata.protocol.commands import AnyCommand, UpdateFile

Keys = frozenset[str]

EVERY_KEY: Final = "*"
NOTHING: Final[Keys] = frozenset()
EVERYTHING: Final[Keys] = frozenset({EVERY_KEY})


def invalidated_keys(command: AnyCommand) -> Keys:
    """The keys of all records that may be untrue once the command is applied.

    It is EVERYTHING for a command that is not known here.
    """
    return _BY_COMMAND.get(type(command), _everything)(command)


def keys_of(caller: Caller, file: FileRecord) -> tuple[str, ...]:
    """The keys that a record is kept under."""
    return (file_key(file.file_uuid), user_key(caller.subject), bucket_key(file.bucket_id), EVERY_KEY)


def file_key(file_uuid: str) -> str:
    """The key of all records of a file."""
    return f"file:{file_uuid}"


def user_key(user_id: str) -> str:
    """The key of all records that were answered to a user."""
    return f"user:{user_id}"


def bucket_key(bucket_id: str) -> str:
    """The key of all records of files in a bucket."""
    return f"bucket:{bucket_id}"


def _nothing(_: object) -> Keys:
    return NOTHING


def _everything(_: object) -> Keys:
    return EVERYTHING


def _file(command: Any) -> Keys:
    return frozenset({file_key(command.file_uuid)})


def _described(command: UpdateFile) -> Keys:
    """A kept record has name, type and folder of the file, and when its content goes; nothing of its kind."""
    shown = (command.filename, command.content_type, command.path, command.retention_hours)
    return NOTHING if all(value is UNSET for value in shown) else _file(command)


def _user(command: Any) -> Keys:
    return frozenset({user_key(command.user_id)})


def _admitted(command: commands.AdmitUser | commands.CreateInvitation) -> Keys:
    """Return the keys: an existing user changes only if roles or groups are set."""
    return NOTHING if command.roles is None and command.groups is None else _user(command)


def _identified(command: commands.AdmitIdentity) -> Keys:
    """Return the keys of a person who was known before; nothing was answered to a new user."""
    return _user(command) if command.user_id else NOTHING


def _target(command: commands.GrantPermission | commands.WithdrawPermission) -> Keys:
    """A grant may replace a lasting one by one that ends."""
    key = file_key if command.target == "file" else bucket_key
    return frozenset({key(command.target_id)})


def _bucket(command: Any) -> Keys:
    return frozenset({bucket_key(command.bucket_id)})


_BY_COMMAND: Final[dict[type, Callable[[Any], Keys]]] = {
    commands.DeleteFile: _file,
    commands.AdmitUser: _admitted,
    commands.PutUser: _user,
    commands.DeleteUser: _user,
    commands.RevokeUser: _user,
    commands.PutGroup: _nothing,
    commands.AddMembers: _nothing,
    commands.RemoveMember: _user,
    commands.DeleteGroup: _everything,  # its members are known to the state only
    commands.PutProvider: _nothing,
    commands.DeleteProvider: _nothing,
    commands.AdmitIdentity: _identified,
    commands.RecordSession: _nothing,
    commands.EndSession: _user,
    commands.EndSessions: _user,
    commands.CreateInvitation: _admitted,
    commands.RevokeInvitation: _nothing,
    commands.RedeemInvitation: _nothing,
    commands.GrantPermission: _target,
    commands.WithdrawPermission: _target,
    commands.DeleteBucket: _bucket,
    commands.UpdateProjectFile: _described,
    commands.UpdateVm: _described,
    commands.UpdateBackup: _described,
    # A name and a quota, which no record of content shows.
    commands.CreateBucket: _nothing,
    commands.UpdateBucket: _nothing,
    # Of files that are not available: their records are refused, and a refusal is not kept.
    commands.CreateProjectFile: _nothing,
    commands.CreateVm: _nothing,
    commands.CreateBackup: _nothing,
    commands.CreatePartial: _nothing,
    commands.RecordProgress: _nothing,
    commands.DeclareSize: _nothing,
    commands.RewindUpload: _nothing,
    commands.TakeOverUpload: _nothing,
    commands.CompleteUpload: _nothing,
    commands.TerminateUpload: _nothing,
    commands.PlaceUpload: _nothing,
    commands.RestartUpload: _nothing,
    # Files with a retention period and readers with a permission that ends: none of these is lasting.
    commands.Expire: _nothing,
    # A file in the trash has no kept record, and no kept record has the end of a protection.
    commands.RestoreFile: _nothing,
    commands.PurgeFile: _nothing,
    commands.SqueezeTrash: _nothing,
    commands.ProtectFile: _nothing,
    # Snapshots are no records of content, and what comes back from one is a new file.
    commands.StartSnapshot: _nothing,
    commands.KeepSnapshot: _nothing,
    commands.EndHolds: _nothing,
    commands.ReviveFile: _nothing,
    # Public links are looked up at each request.
    commands.CreatePublicToken: _nothing,
    commands.RevokePublicToken: _nothing,
    # The cluster: its members reach nodes with the view. Those that hold replicas may change.
    commands.Bootstrap: _nothing,
    commands.OpenSession: _nothing,
    commands.AddIntermediate: _nothing,
    commands.CreateJoinToken: _nothing,
    commands.DeleteJoinToken: _nothing,
    commands.AdmitCoordinator: _nothing,
    commands.MoveNode: _nothing,
    commands.JoinNode: _nothing,
    commands.RenewCertificate: _nothing,
    commands.AdmitCertificate: _nothing,
    commands.RecordRestore: _nothing,
    commands.AnnounceNode: _nothing,
    commands.DrainNode: _nothing,
    commands.RemoveNode: _nothing,
    commands.RecordCoordinators: _nothing,
    commands.MarkNode: _nothing,
    commands.RevokeNode: _nothing,
    commands.ForgetInstance: _nothing,
    commands.AddTokenKey: _nothing,  # whose tokens are valid is looked at for each request
    commands.RecountReplicas: _nothing,
    commands.AddReplica: _nothing,
    commands.ReleaseReplica: _nothing,
    commands.Collect: _nothing,
    commands.CollectOverQuota: _nothing,
    commands.CollectPurged: _nothing,
    commands.ReportDropped: _nothing,
    commands.ReportDamaged: _nothing,
    commands.ReportLost: _nothing,
    commands.ReportOrphans: _nothing,
    commands.RaiseRules: _nothing,
    commands.HashState: _nothing,
    commands.HashWhole: _nothing,
    commands.ReportHash: _nothing,
    commands.TriggerJob: _nothing,
    commands.CancelRun: _nothing,
    commands.StartRun: _nothing,
    commands.RecordRun: _nothing,
}

CLASSIFIED: Final = frozenset(_BY_COMMAND)
