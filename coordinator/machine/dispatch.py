"""Which function applies which command and answers which query; replies and duplicate suppression around
them.
"""

import sqlite3
from collections.abc import Callable
from typing import Any

import msgspec

from ca.errors import FilestoreError
from coordinator import commands, queries
from coordinator.commands import Envelope, Reply
from coordinator.machine import (
    blobs,
    cluster,
    contents,
    join_tokens,
    nodes,
    project_files,
    sessions,
    uploads,
    users,
)
from coordinator.machine.change import Change, Question

_COMMANDS: dict[type, Callable[[Change, Any], object]] = {
    commands.Bootstrap: cluster.bootstrap,
    commands.OpenSession: sessions.open_session,
    commands.AdmitUser: users.admit,
    commands.CreateJoinToken: join_tokens.create,
    commands.DeleteJoinToken: join_tokens.delete,
    commands.JoinNode: nodes.join,
    commands.RenewCertificate: nodes.renew_certificate,
    commands.AnnounceNode: nodes.announce,
    commands.CreateProjectFile: project_files.create,
    commands.UpdateProjectFile: project_files.update,
    commands.DeleteFile: project_files.delete,
    commands.RecordProgress: uploads.record_progress,
    commands.DeclareSize: uploads.declare_size,
    commands.CompleteUpload: uploads.complete,
    commands.TerminateUpload: uploads.terminate,
}

_QUERIES: dict[type, Callable[[Question, Any], object]] = {
    queries.GetView: cluster.get_view,
    queries.GetUser: users.get,
    queries.CheckAdmin: users.check_admin,
    queries.CheckJoinToken: join_tokens.check,
    queries.CheckJoinSecret: join_tokens.check_secret,
    queries.ListJoinTokens: join_tokens.list_page,
    queries.ListNodes: nodes.list_all,
    queries.GetProjectFile: project_files.get,
    queries.ListProjectFiles: project_files.list_page,
    queries.GetUpload: uploads.get,
    queries.GetContent: contents.get,
    queries.FindBlob: blobs.find,
    queries.LiveUploads: uploads.live,
}

_encode = msgspec.msgpack.Encoder().encode


def apply(db: sqlite3.Connection, log_index: int, envelope: Envelope) -> bytes:
    """Apply one log entry inside the caller's transaction; the encoded Reply.

    A command that was applied before under the same session and sequence changes nothing and replies the
    same.
    """
    change = Change(db, log_index, envelope.at_ms)
    if envelope.session == 0:
        return _run(change, envelope)
    try:
        known = sessions.earlier_reply(db, envelope.session, envelope.sequence)
    except FilestoreError as refusal:
        return _refusal(refusal)
    if known is not None:
        return known
    reply = _run(change, envelope)
    sessions.keep_reply(change, envelope, reply)
    return reply


def answer(db: sqlite3.Connection, at_ms: int, query: queries.AnyQuery) -> bytes:
    """The encoded Reply to a query; `at_ms` is the time of the coordinator that answers."""
    try:
        value = _QUERIES[type(query)](Question(db, at_ms), query)
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
