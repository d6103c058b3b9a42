"""Maps each command to the function that applies it, and each query to the one that answers it.

Replies are encoded here, and a repeated command is applied once.

Tested by tests/unit/coordinator/machine/test_batches.py.
"""

import sqlite3
from collections.abc import Callable
from typing import Any

import msgspec

from ca.errors import FilestoreError
from coordinator.machine import (
    backups,
    blobs,
    bucket_lists,
    buckets,
    cluster,
    contents,
    damaged,
    expiry,
    files,
    jobs,
    join_tokens,
    nodes,
    parts,
    permissions,
    project_files,
    public_tokens,
    recounts,
    replica_lists,
    replicas,
    upload_places,
    uploads,
    users,
    vms,
)
from coordinator.machine.execution import digests, sessions
from coordinator.machine.execution.access import Users
from coordinator.machine.execution.change import Change, Question
from coordinator.machine.execution.replies import Sessions
from metadata.protocol import commands, queries
from metadata.protocol.commands import Envelope, Reply

_COMMANDS: dict[type, Callable[[Change, Any], object]] = {
    commands.Bootstrap: cluster.bootstrap,
    commands.OpenSession: sessions.open_session,
    commands.AdmitUser: users.admit,
    commands.PutUser: users.put,
    commands.DeleteUser: users.delete,
    commands.RevokeUser: users.revoke,
    commands.CreateBucket: buckets.create,
    commands.UpdateBucket: buckets.update,
    commands.DeleteBucket: buckets.delete,
    commands.GrantPermission: permissions.grant,
    commands.WithdrawPermission: permissions.withdraw,
    commands.CreatePublicToken: public_tokens.create,
    commands.RevokePublicToken: public_tokens.revoke,
    commands.AddIntermediate: cluster.add_intermediate,
    commands.CreateJoinToken: join_tokens.create,
    commands.DeleteJoinToken: join_tokens.delete,
    commands.JoinNode: nodes.join,
    commands.AdmitCoordinator: join_tokens.admit_coordinator,
    commands.RenewCertificate: nodes.renew_certificate,
    commands.AdmitCertificate: nodes.admit_certificate,
    commands.RecordRestore: cluster.record_restore,
    commands.AnnounceNode: nodes.announce,
    commands.DrainNode: nodes.drain,
    commands.MoveNode: nodes.move,
    commands.MarkNode: nodes.mark,
    commands.RemoveNode: nodes.remove,
    commands.RevokeNode: nodes.revoke,
    commands.ForgetInstance: nodes.forget_instance,
    commands.AddTokenKey: cluster.add_token_key,
    commands.TriggerJob: jobs.trigger,
    commands.CancelRun: jobs.cancel,
    commands.StartRun: jobs.start,
    commands.RecordRun: jobs.record,
    commands.Expire: expiry.expire,
    commands.Collect: blobs.collect,
    commands.CollectOverQuota: blobs.collect_over_quota,
    commands.ReleaseReplica: replicas.release,
    commands.AddReplica: replicas.add,
    commands.ReportDropped: replicas.report_dropped,
    commands.ReportLost: replicas.report_lost,
    commands.ReportDamaged: replicas.report_damaged,
    commands.ReportOrphans: replicas.report_orphans,
    commands.RecountReplicas: recounts.step,
    commands.CreateProjectFile: project_files.create,
    commands.CreateVm: vms.create,
    commands.CreateBackup: backups.create,
    commands.CreatePartial: parts.create,
    commands.UpdateProjectFile: project_files.update,
    commands.UpdateVm: vms.update,
    commands.UpdateBackup: backups.update,
    commands.DeleteFile: files.delete,
    commands.RecordProgress: uploads.record_progress,
    commands.RewindUpload: uploads.rewind,
    commands.TakeOverUpload: uploads.take_over,
    commands.DeclareSize: uploads.declare_size,
    commands.CompleteUpload: uploads.complete,
    commands.TerminateUpload: uploads.terminate,
    commands.PlaceUpload: uploads.place,
    commands.RestartUpload: uploads.restart,
    commands.RecordCoordinators: cluster.record_coordinators,
    commands.RaiseRules: cluster.raise_rules,
    commands.HashState: digests.hash_slice,
    commands.HashWhole: digests.hash_whole,
    commands.ReportHash: digests.report,
}

_QUERIES: dict[type, Callable[[Question, Any], object]] = {
    queries.GetView: cluster.get_view,
    queries.GetUser: users.get,
    queries.FindUser: users.find,
    queries.CheckPrincipal: users.check_principal,
    queries.ListUsers: users.list_page,
    queries.CheckAdmin: users.check_admin,
    queries.CheckNewFile: files.check,
    queries.CheckJoinToken: join_tokens.check,
    queries.CheckJoinSecret: join_tokens.check_secret,
    queries.ListJoinTokens: join_tokens.list_page,
    queries.ListNodes: nodes.list_all,
    queries.GetJobRun: jobs.get,
    queries.ListJobRuns: jobs.list_page,
    queries.GetLastRuns: jobs.last,
    queries.GetProjectFile: project_files.get,
    queries.ListProjectFiles: project_files.list_page,
    queries.GetManifest: contents.get_manifest,
    queries.GetVm: vms.get,
    queries.ListVms: vms.list_page,
    queries.GetBackup: backups.get,
    queries.ListBackups: backups.list_page,
    queries.GetBucket: buckets.get,
    queries.ListBuckets: buckets.list_page,
    queries.ListBucketFiles: bucket_lists.list_files,
    queries.ListFolderFiles: bucket_lists.list_files,
    queries.ListFolders: bucket_lists.list_folders,
    queries.ListBucketUploads: buckets.list_uploads,
    queries.ListPermissions: permissions.list_page,
    queries.ListPublicTokens: public_tokens.list_page,
    queries.ListOwnPermissions: permissions.list_own,
    queries.ListOwnPublicTokens: public_tokens.list_own,
    queries.GetPublicContent: public_tokens.get_content,
    queries.GetUpload: uploads.get,
    queries.GetParts: parts.get,
    queries.GetTicketContent: contents.get,
    queries.GetContent: contents.get,
    queries.FindBlob: blobs.find,
    queries.LiveUploads: uploads.live,
    queries.ListNodeUploads: upload_places.list_of_node,
    queries.ListReplicasToDelete: replica_lists.list_to_delete,
    queries.ListReplicas: replica_lists.list_held,
    queries.KnownReplicas: replica_lists.list_known,
    queries.ListShortBlobs: replica_lists.list_short,
    queries.ListSurplus: replica_lists.list_surplus,
    queries.GetReplicaCounts: replica_lists.counts,
    queries.GetNodeReplicas: replica_lists.of_node,
    queries.CountSoleReplicas: replica_lists.count_sole,
    queries.CountCollectable: replica_lists.count_collectable,
    queries.ListDamagedBlobs: damaged.list_page,
    queries.ListLastSources: damaged.list_last_sources,
    queries.ListDamagedCopies: damaged.list_copies,
}

_encode = msgspec.msgpack.Encoder().encode


class Batch:
    """Commands that are applied inside one transaction of the caller's, in the order of the log.

    Rows that all of them need are read once and written once. `end` comes before the commit. `is_long`: one
    of them was of LONG_COMMANDS.
    """

    __slots__ = ("_db", "_sessions", "_users", "is_long")

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._users = Users(db)
        self._sessions = Sessions(db)
        self.is_long = False

    def apply(self, log_index: int, envelope: Envelope) -> bytes:
        """Apply one log entry; return the encoded Reply.

        A command that was applied before with the same session and sequence changes nothing and gets the same
        reply.
        """
        change = Change(self._db, log_index, envelope.at_ms, self._users, self._sessions)
        self.is_long |= isinstance(envelope.command, commands.LONG_COMMANDS)
        if envelope.session == 0:
            return _run(change, envelope)
        try:
            known = self._sessions.earlier_reply(envelope.session, envelope.sequence)
        except FilestoreError as refusal:
            return _refusal(refusal)
        if known is not None:
            return known
        reply = _run(change, envelope)
        self._sessions.keep_reply(log_index, envelope, reply)
        return reply

    def end(self) -> None:
        """Write the pending rows."""
        self._sessions.flush()


def answer(db: sqlite3.Connection, at_ms: int, query: queries.AnyQuery) -> bytes:
    """Return the encoded Reply to a query; `at_ms` is the time of the coordinator that answers."""
    try:
        value = _QUERIES[type(query)](Question(db, at_ms, Users(db)), query)
    except FilestoreError as refusal:
        return _refusal(refusal)
    return _encode(Reply("", "", msgspec.Raw(_encode(value))))


def _run(change: Change, envelope: Envelope) -> bytes:
    changes_before = change.db.total_changes
    try:
        value = _COMMANDS[type(envelope.command)](change, envelope.command)
    except FilestoreError as refusal:
        assert change.db.total_changes == changes_before, f"{envelope.command} was refused half done"
        return _refusal(refusal)
    return _encode(Reply("", "", msgspec.Raw(_encode(value))))


def _refusal(refusal: FilestoreError) -> bytes:
    return _encode(Reply(refusal.code, refusal.details, msgspec.Raw(_encode(None))))
