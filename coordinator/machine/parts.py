"""Partial uploads, and the final ones that are assembled from them (tus concatenation).

A partial upload has a row in `files`, with a kind that no list shows. Only its owner's requests on its upload
find it, and its bytes count for the quota. When all of its bytes are durable it stays as it is. A file that
is created from such uploads takes them over in that change, with their reserved bytes: `parts.part_of` names
the file. From then on they are deleted together with its upload, when that is complete or ends otherwise.
Until then the assembly can always be resumed.
"""

import json
from typing import Any

from msgspec import Struct, UnsetType

from ca.errors import Conflict, Gone, InvalidRequest, NotFound, PayloadTooLarge
from coordinator.machine import files, uploads
from coordinator.machine.execution import quotas
from coordinator.machine.execution.access import User, require_user
from coordinator.machine.execution.change import Change, Question
from metadata.model.records import PARTIAL, UploadPart, UploadRecord
from metadata.protocol.commands import CreateFile, CreatePartial
from metadata.protocol.queries import GetParts, GetUpload
from runtime.bounds import COUNT_MAX


class _Part(Struct, frozen=True):
    """The row of a partial upload."""

    bucket_id: str
    size_bytes: int | None
    placement: str
    offset_bytes: int
    prefix_sha256: str
    expires_at_ms: int
    reserved_bytes: int
    part_of: str | None


class TakenParts(Struct, frozen=True):
    """The parts that a new file takes over, by their uploads; none for one that is uploaded as a whole."""

    parts: dict[str, _Part]

    def reserved_in(self, bucket_id: str) -> int:
        """Return the bytes that they have reserved of the quota of a bucket."""
        return sum(part.reserved_bytes for part in self.parts.values() if part.bucket_id == bucket_id)

    def join(self, change: Change, command: CreateFile) -> None:
        """Make them parts of the file, which reserves for itself."""
        if not self.parts:
            return
        change.db.execute(
            "INSERT INTO concatenations (sequence, parts) VALUES (?, ?)",
            (change.log_index, json.dumps(list(self.parts))),
        )
        for file_uuid, part in self.parts.items():
            quotas.add_reserved(change.db, part.bucket_id, -part.reserved_bytes)
            change.db.execute(
                "INSERT INTO parts (file_uuid, part_of) VALUES (?, ?)", (file_uuid, command.file_uuid)
            )
            change.db.execute(
                "UPDATE uploads SET reserved_bytes = 0, expires_at_ms = ? WHERE file_uuid = ?",
                (change.at_ms + uploads.UPLOAD_LIFE_MS, file_uuid),
            )


def create(change: Change, command: CreatePartial) -> UploadRecord:
    """Begin a partial upload in a bucket in which the caller may create files."""
    user = require_user(change.users, command.caller)
    new = files.NewFile(
        file_uuid=command.file_uuid,
        kind=PARTIAL,
        bucket_id=command.bucket_id,
        size_bytes=command.size_bytes,
    )
    files.check_new(change, user, new)
    return uploads.begin(change, files.insert(change, user, new), command.placement)


def get(question: Question, query: GetParts) -> list[UploadPart]:
    """Return the states of these partial uploads. Only the caller's own are found."""
    user = require_user(question.users, query.caller)
    parts = ((file_uuid, _find(question, user, file_uuid)) for file_uuid in query.file_uuids)
    return [
        UploadPart(
            file_uuid=file_uuid,
            size_bytes=part.size_bytes,
            placement=json.loads(part.placement),
            offset_bytes=part.offset_bytes,
            prefix_sha256=part.prefix_sha256,
        )
        for file_uuid, part in parts
    ]


def end_all(change: Change, user_id: str) -> None:
    """Let the partial uploads of a user expire now. Parts of a final upload stay: they end with that."""
    change.db.execute(
        "UPDATE uploads SET expires_at_ms = MIN(expires_at_ms, ?) WHERE file_uuid IN"
        " (SELECT f.file_uuid FROM files f LEFT JOIN parts p ON p.file_uuid = f.file_uuid"
        " WHERE f.kind = ? AND f.owner_id = ? AND p.file_uuid IS NULL)",
        (change.at_ms, PARTIAL, user_id),
    )


def made_before(change: Change, command: CreateFile) -> UploadRecord | None:
    """Return the upload of the file that the same command created before; None if there is none."""
    if isinstance(command.parts, UnsetType):
        return None
    known = change.db.execute("SELECT 1 FROM files WHERE file_uuid = ?", (command.file_uuid,)).fetchone()
    if known is None:
        return None
    upload = uploads.get(change, GetUpload(caller=command.caller, file_uuid=command.file_uuid))
    if upload.parts != command.parts:
        raise InvalidRequest("file_uuid: a file with this id exists.")
    return upload


def require(change: Change, user: User, command: CreateFile) -> TakenParts:
    """Return the parts of a file that is to be created.

    Raises NotFound for a part that is not the user's, Gone for an expired one. Raises Conflict for an
    incomplete part or a part of another file, and if the sum of their sizes is not the declared size.
    """
    if isinstance(command.parts, UnsetType):
        return TakenParts({})
    found = {file_uuid: _find(change, user, file_uuid) for file_uuid in command.parts}
    if len(found) != len(command.parts):
        raise InvalidRequest("Upload-Concat: lists a partial upload more than once.")
    for file_uuid, part in found.items():
        _require_free(change, file_uuid, part)
    size_bytes = sum(part.offset_bytes for part in found.values())
    if size_bytes > COUNT_MAX:
        raise PayloadTooLarge(f"The partial uploads have {size_bytes} bytes together.")
    if size_bytes != command.size_bytes:
        raise Conflict(f"The partial uploads have {size_bytes} bytes together by now.")
    return TakenParts(found)


def _find(scope: Change | Question, user: User, file_uuid: str) -> _Part:
    """Return a partial upload of the user. Raises NotFound."""
    row: tuple[Any, ...] | None = scope.db.execute(
        "SELECT f.bucket_id, f.size_bytes, u.placement, u.offset_bytes, u.prefix_sha256, u.expires_at_ms,"
        " u.reserved_bytes, p.part_of FROM files f JOIN uploads u ON u.file_uuid = f.file_uuid"
        " LEFT JOIN parts p ON p.file_uuid = u.file_uuid"
        " WHERE f.file_uuid = ? AND f.kind = ? AND f.owner_id = ?",
        (file_uuid, PARTIAL, user.user_id),
    ).fetchone()
    if row is None:
        raise NotFound(f"Upload-Concat: you have no partial upload {file_uuid}.")
    return _Part(*row)


def _require_free(change: Change, file_uuid: str, part: _Part) -> None:
    if part.part_of:
        raise Conflict(f"Upload-Concat: {file_uuid} is a part of {part.part_of} already.")
    if part.expires_at_ms <= change.at_ms:
        raise Gone(f"Upload-Concat: {file_uuid} has expired.")
    if part.offset_bytes != part.size_bytes:
        raise Conflict(
            f"Upload-Concat: {file_uuid} is not complete: it stands at {part.offset_bytes} of"
            f" {'an unknown number of' if part.size_bytes is None else part.size_bytes} bytes."
        )
