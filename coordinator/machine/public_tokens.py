"""Public tokens: links to the content of one file that need no credential. Only their digests are stored.

A token works as long as its creator is enabled and has admin on the file.
"""

from typing import Any

import msgspec

from ca.errors import Conflict, Forbidden, Gone, InvalidRequest, NotFound
from coordinator.machine import contents, files
from coordinator.machine.execution.access import Level, require_user
from coordinator.machine.execution.change import Change, Question
from coordinator.machine.execution.pages import Condition, Listing, read_page
from metadata.model.listed_records import SharePage, ShareRecord
from metadata.model.records import ContentRecord, PublicTokenPage, PublicTokenRecord
from metadata.protocol.commands import CreatePublicToken, RevokePublicToken
from metadata.protocol.queries import GetPublicContent, ListOwnPublicTokens, ListPublicTokens

_DAY_MS = 24 * 60 * 60 * 1000
LIFE_MS_DEFAULT = _DAY_MS
LIFE_MS_MAX = 30 * _DAY_MS
PUBLIC_TOKENS_MAX = 1000  # of one file, including ended ones: they are deleted together with it

_COLUMNS = "token_id, created_by, created_at_ms, expires_at_ms, revoked, sequence"


def create(change: Change, command: CreatePublicToken) -> PublicTokenRecord:
    """Store the digest of a new token. Needs admin on the file, which must not be past its retention."""
    file = files.require(change, command.caller, command.file_uuid, Level.ADMIN)
    if command.bucket_id not in ("", file.bucket_id):
        raise InvalidRequest("bucket_uuid: the file is in another bucket.")
    expires_at_ms = _expiry(change.end_ms(command.expires_at_ms, command.ttl_seconds), change.at_ms)
    if file.status == "tombstoned":
        raise Gone("The retention period of this file has passed.")
    for ended in _check_new(change, command, file.sequence):
        change.db.execute("DELETE FROM public_tokens WHERE sequence = ?", (ended,))
    change.db.execute(
        "INSERT INTO public_tokens (sequence, token_id, token_sha256, file_sequence, created_by,"
        " created_at_ms, expires_at_ms, revoked) VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
        (
            change.log_index,
            command.token_id,
            command.token_sha256,
            file.sequence,
            command.caller.subject,
            change.at_ms,
            expires_at_ms,
        ),
    )
    row = (command.token_id, command.caller.subject, change.at_ms, expires_at_ms, 0)
    return _record(file, row, change.at_ms)


def revoke(change: Change, command: RevokePublicToken) -> None:
    """End a token of the file; a repeated call changes nothing. Needs admin on the file."""
    file = files.require(change, command.caller, command.file_uuid, Level.ADMIN)
    known = change.db.execute(
        "SELECT sequence FROM public_tokens WHERE token_id = ? AND +file_sequence = ?",
        (command.token_id, file.sequence),
    ).fetchone()
    if known is None:
        raise NotFound("There is no such public token of this file.")
    change.db.execute("UPDATE public_tokens SET revoked = 1 WHERE sequence = ?", known)


def revoke_all(change: Change, user_id: str) -> None:
    """End every token of this user."""
    change.db.execute("UPDATE public_tokens SET revoked = 1 WHERE created_by = ? AND revoked = 0", (user_id,))


def list_page(question: Question, query: ListPublicTokens) -> PublicTokenPage:
    """Return one page of the tokens of a file, including ended ones, oldest first.

    Needs admin on the file.
    """
    file = files.require(question, query.caller, query.file_uuid, Level.ADMIN)
    rows = question.db.execute(
        f"SELECT {_COLUMNS} FROM public_tokens WHERE file_sequence = ? AND sequence > ?"
        " ORDER BY sequence LIMIT ?",
        (file.sequence, query.cursor, query.limit + 1),
    ).fetchall()
    page = [_record(file, row, question.at_ms) for row in rows[: query.limit]]
    return PublicTokenPage(page, rows[query.limit - 1][-1] if len(rows) > query.limit else 0)


def list_own(question: Question, query: ListOwnPublicTokens) -> SharePage:
    """Return one page of the tokens that the caller made, or that are on its files; oldest first.

    Only those of files on which it has admin.
    """
    user = require_user(question.users, query.caller)
    own = Condition("(t.created_by = ? OR f.owner_id = ?)", (user.user_id, user.user_id))
    listing = Listing(
        columns=f"{files.ROW_COLUMNS}, f.filename, t.token_id, t.created_by, t.created_at_ms,"
        " t.expires_at_ms, t.revoked, t.sequence",
        table="public_tokens t",
        joined="JOIN files f ON f.sequence = t.file_sequence",
        sequence="t.sequence",
        filters=() if user.is_admin else (own,),
    )
    rows, next_cursor = read_page(question.db, listing, cursor=query.cursor, limit=query.limit)
    found = [(files.row_of(row), row[-7:]) for row in rows]
    return SharePage(
        [
            _share(file, rest, question.at_ms)
            for file, rest in found
            if files.level(question, user, file) >= Level.ADMIN
        ],
        next_cursor,
    )


def get_content(question: Question, query: GetPublicContent) -> ContentRecord:
    """Return the record and the nodes that have the bytes, for the bearer of the token.

    Raises NotFound for a token that the bucket does not have, Gone for one that has ended, then the error for
    the state of the file.
    """
    row = question.db.execute(
        f"SELECT {files.ROW_COLUMNS}, t.created_by, t.expires_at_ms, t.revoked"
        " FROM public_tokens t JOIN files f ON f.sequence = t.file_sequence WHERE t.token_sha256 = ?",
        (query.token_sha256,),
    ).fetchone()
    if row is None or files.row_of(row).bucket_id != query.bucket_id:
        raise NotFound("There is no such public token.")
    created_by, expires_at_ms, revoked = row[-3:]
    maker = question.users.find(created_by)
    if revoked or expires_at_ms <= question.at_ms or maker is None or maker[2]:
        raise Gone("This public token has ended.")
    try:
        file = files.permitted(question, maker[0], row, Level.ADMIN)
    except Forbidden:
        raise Gone("This public token has ended.") from None
    contents.check_available(file)
    return msgspec.structs.replace(
        contents.record(question.db, file.file_uuid), shared_by=created_by, link_ends_at_ms=expires_at_ms
    )


def _expiry(asked_ms: int | None, at_ms: int) -> int:
    if asked_ms is None:
        return at_ms + LIFE_MS_DEFAULT
    if asked_ms > at_ms + LIFE_MS_MAX:
        raise InvalidRequest("expires_at: at most 30 days from now.")
    return asked_ms


def _check_new(change: Change, command: CreatePublicToken, file_sequence: int) -> tuple[int, ...]:
    """Return the sequence of the ended token to replace by this one, if there are too many."""
    is_taken, count = change.db.execute(
        "SELECT EXISTS (SELECT 1 FROM public_tokens WHERE token_id = ?)"
        " OR EXISTS (SELECT 1 FROM public_tokens WHERE token_sha256 = ?),"
        " (SELECT COUNT(*) FROM public_tokens WHERE file_sequence = ?)",
        (command.token_id, command.token_sha256, file_sequence),
    ).fetchone()
    if is_taken:
        raise Conflict("A public token with this id or secret exists.")
    if count < PUBLIC_TOKENS_MAX:
        return ()
    ended = change.db.execute(
        "SELECT sequence FROM public_tokens WHERE file_sequence = ? AND (revoked = 1 OR expires_at_ms <= ?)"
        " ORDER BY +sequence LIMIT 1",
        (file_sequence, change.at_ms),
    ).fetchone()
    if ended is None:
        raise Conflict(f"This file has {count} public tokens, the most that it may have.")
    return tuple(ended)


def _share(file: files.FileRow, row: tuple[Any, ...], at_ms: int) -> ShareRecord:
    """Return a record from a row of the file's name and _COLUMNS."""
    link = _record(file, row[1:], at_ms)
    return ShareRecord(**msgspec.structs.asdict(link), filename=row[0], kind=file.kind)


def _record(file: files.FileRow, row: tuple[Any, ...], at_ms: int) -> PublicTokenRecord:
    """Return a record from a row that begins with _COLUMNS; the sequence may be missing."""
    token_id, created_by, created_at_ms, expires_at_ms, revoked = row[:5]
    status = "revoked" if revoked else "expired" if expires_at_ms <= at_ms else "active"
    return PublicTokenRecord(
        token_id=token_id,
        file_uuid=file.file_uuid,
        bucket_id=file.bucket_id,
        created_by=created_by,
        created_at_ms=created_at_ms,
        expires_at_ms=expires_at_ms,
        status=status,
    )
