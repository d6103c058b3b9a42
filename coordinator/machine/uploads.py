"""Uploads: from `pending` over `uploading` to `available`, or deleted when they expire."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ca.errors import (
    ChecksumMismatch,
    Conflict,
    Gone,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from coordinator.machine import blobs, contents, files, replicas
from coordinator.machine.execution import quotas, states
from coordinator.machine.execution.access import Level, require_user
from coordinator.machine.execution.change import Change, Question
from metadata.model.records import PARTIAL, Caller, ContentRecord, UploadRecord
from metadata.protocol.commands import (
    CompleteUpload,
    CreateFile,
    DeclareSize,
    PlaceUpload,
    RecordProgress,
    RestartUpload,
    RewindUpload,
    TakeOverUpload,
    TerminateUpload,
)
from metadata.protocol.queries import GetUpload, LiveUploads

UPLOAD_LIFE_MS = 24 * 60 * 60 * 1000  # after the last byte

_COLUMNS = "u.placement, u.offset_bytes, u.expires_at_ms, u.epoch, u.prefix_sha256, u.reserved_bytes"
_node_ids = msgspec.json.Decoder(list[str]).decode
_encode = msgspec.json.Encoder().encode


class _Upload(Struct, frozen=True):
    """The row of an upload that has not ended, and the quota of its bucket, 0 for none."""

    placement: list[str]
    offset_bytes: int
    expires_at_ms: int
    epoch: int = 0
    prefix_sha256: str = ""
    reserved_bytes: int = 0
    quota_bytes: int = 0


def begin(change: Change, row: files.FileRow, placement: list[str]) -> UploadRecord:
    """Begin the upload of a file that was just created."""
    assert placement, "the leader stamps the placement in"
    reserved_bytes = quotas.grant(change.db, row.bucket_id, row.size_bytes or 0)
    quotas.add_reserved(change.db, row.bucket_id, reserved_bytes)
    upload = _Upload(
        placement,
        offset_bytes=0,
        expires_at_ms=change.at_ms + UPLOAD_LIFE_MS,
        reserved_bytes=reserved_bytes,
        quota_bytes=quotas.quota_of(change.db, row.bucket_id),
    )
    change.db.execute(
        "INSERT INTO uploads (file_uuid, placement, offset_bytes, expires_at_ms, reserved_bytes)"
        " VALUES (?, ?, 0, ?, ?)",
        (row.file_uuid, _encode(placement).decode(), upload.expires_at_ms, upload.reserved_bytes),
    )
    return _record(change, row, upload)


def get(scope: Change | Question, query: GetUpload) -> UploadRecord:
    """Return the upload, ended or not. Needs write on the file."""
    row, upload = _require(scope, query.caller, query.file_uuid)
    return _record(scope, row, _live(scope, row, upload))


def live(question: Question, query: LiveUploads) -> list[str]:
    """Return which of these files have an upload that has not ended."""
    marks = ", ".join("?" * len(query.file_uuids))
    rows = question.db.execute(
        f"SELECT file_uuid FROM uploads WHERE file_uuid IN ({marks}) ORDER BY file_uuid",
        query.file_uuids,
    ).fetchall()
    return [file_uuid for (file_uuid,) in rows]


def record_progress(change: Change, command: RecordProgress) -> UploadRecord:
    """Record bytes that are durable on the write quorum: pending becomes uploading, the expiry is extended.

    Needs write. Only the holder of this epoch may, and only forward: a late report is rejected, and so are
    bytes that exceed the bucket's quota.
    """
    row, earlier = _require_held(change, command, command.node_id)
    if earlier is None:
        return _record(change, row, None)
    if command.offset_bytes < earlier.offset_bytes:
        raise Conflict(f"This upload stands at {earlier.offset_bytes}, not before.")
    is_same = command.prefix_sha256 == earlier.prefix_sha256 or not earlier.prefix_sha256
    if command.offset_bytes == earlier.offset_bytes and not is_same:
        raise Conflict(f"Other bytes were recorded up to {earlier.offset_bytes}.")
    wanted_bytes = 0 if row.size_bytes is not None else max(command.offset_bytes, command.reserve_bytes)
    upload = msgspec.structs.replace(
        earlier,
        placement=_checked_placement(change, command) or earlier.placement,
        offset_bytes=command.offset_bytes,
        expires_at_ms=change.at_ms + UPLOAD_LIFE_MS,
        prefix_sha256=command.prefix_sha256,
        reserved_bytes=_with_room(change, row.bucket_id, earlier, wanted_bytes),
    )
    _write(change, command.file_uuid, upload)
    quotas.add_reserved(change.db, row.bucket_id, upload.reserved_bytes - earlier.reserved_bytes)
    if row.status == "pending" and command.offset_bytes > 0:
        row = msgspec.structs.replace(row, status="uploading")
        change.db.execute(
            f"UPDATE files SET status = 'uploading', {states.NEXT} WHERE sequence = ?",
            (change.at_ms, row.sequence),
        )
    return _record(change, row, upload)


def rewind(change: Change, command: RewindUpload) -> UploadRecord:
    """Go back to an earlier offset, in a new epoch. Needs write; only the holder may."""
    row, earlier = _require_held(change, command, command.node_id)
    if earlier is None:
        raise Conflict("This upload has ended: the file is available.")
    if command.offset_bytes > earlier.offset_bytes:
        raise Conflict(f"This upload stands at {earlier.offset_bytes} only.")
    upload = _begin_epoch(
        change,
        row.file_uuid,
        earlier,
        offset_bytes=command.offset_bytes,
        prefix_sha256=command.prefix_sha256,
    )
    return _record(change, row, upload)


def take_over(change: Change, command: TakeOverUpload) -> UploadRecord:
    """Make another node of the placement the holder of the upload. Needs write.

    The old holder stays in the placement, as its last: it is a member when it comes back.
    """
    row, upload = _require_as_seen(change, command)
    if upload is not None:
        others = upload.placement[1:]
        if command.successor not in others:
            raise InvalidRequest("successor: must be another node of the placement.")
        others.remove(command.successor)
        placement = [command.successor, *others, command.holder]
        upload = _begin_epoch(change, row.file_uuid, upload, placement=placement)
    return _record(change, row, upload)


def place(change: Change, command: PlaceUpload) -> int:
    """Place the upload on other nodes; return the new epoch. Its expiry stays, as no byte was sent."""
    found = change.db.execute(f"SELECT {_COLUMNS} FROM uploads u WHERE file_uuid = ?", (command.file_uuid,))
    earlier = _upload_of(found.fetchone() or (None,))
    if earlier is None or earlier.expires_at_ms <= change.at_ms:
        raise NotFound("This upload has ended.")
    if (command.epoch, command.offset_bytes) != (earlier.epoch, earlier.offset_bytes):
        raise Conflict(f"This upload stands at {earlier.offset_bytes}, in epoch {earlier.epoch}.")
    _require_nodes(change, command.placement)
    lost = command.lost if command.is_lost else None
    return _begin_epoch(change, command.file_uuid, earlier, lost=lost, placement=command.placement).epoch


def restart(change: Change, command: RestartUpload) -> UploadRecord:
    """Restart the upload on nodes that the leader chose, since no node has its bytes. Needs write."""
    assert command.placement, "the leader stamps the placement in"
    row, upload = _require_as_seen(change, command)
    if upload is not None:
        placed = {"placement": command.placement, "expires_at_ms": change.at_ms + UPLOAD_LIFE_MS}
        upload = _begin_epoch(change, row.file_uuid, upload, lost=command.lost, **placed)
    return _record(change, row, upload)


def declare_size(change: Change, command: DeclareSize) -> UploadRecord:
    """Fix the size of an upload that began without one; the same size again is no error. Needs write.

    Raises PayloadTooLarge for a size that exceeds the quota now; the size stays open then.
    """
    row, found = _require(change, command.caller, command.file_uuid)
    upload = _live(change, row, found)
    if row.size_bytes is None:
        # Otherwise the upload could never be completed.
        contents.require_quota(change, row.bucket_id, command.size_bytes)
        if upload is not None:
            upload = _reserve(change, row, upload, command.size_bytes)
        row = msgspec.structs.replace(row, size_bytes=command.size_bytes)
        change.db.execute(
            f"UPDATE files SET size_bytes = ?, {states.NEXT} WHERE sequence = ?",
            (command.size_bytes, change.at_ms, row.sequence),
        )
    elif row.size_bytes != command.size_bytes:
        raise Conflict(f"The size of this upload was declared as {row.size_bytes} bytes.")
    return _record(change, row, upload)


def complete(change: Change, command: CompleteUpload) -> ContentRecord:
    """Make the file available with its replicas, and store the properties of its content.

    Needs write now, not only when the upload began. A repeated call with the same content changes nothing.
    """
    row, upload = _require(change, command.caller, command.file_uuid)
    if row.kind == PARTIAL:
        raise Conflict("This is a partial upload, which becomes no file by itself.")
    if row.status not in ("pending", "uploading"):
        if row.blob_sha256 == command.blob_sha256:
            return _completed(change, command)
        raise Conflict("This file is complete, with other content.")
    live = _live(change, row, upload)
    if command.node_id and live is not None and not _is_held(live, command.node_id, command.epoch):
        raise Unavailable(f"Node {live.placement[0]} holds this upload, in epoch {live.epoch}.")
    _require_stored(change, row, command, live)
    contents.make_available(change, row, command)
    _end(change, row)
    return _completed(change, command)


def stored(change: Change, new: files.NewFile, command: CreateFile) -> CompleteUpload | None:
    """Return the completion of a file that is created together with its content; None without content.

    Raises as `complete` does, and InvalidRequest for content without a size, or of parts.
    """
    content = command.content
    if content is msgspec.UNSET:
        return None
    if new.size_bytes is None or command.parts is not msgspec.UNSET:
        raise InvalidRequest("content: is of a file that is whole, and whose size is declared.")
    completion = CompleteUpload(
        caller=command.caller,
        file_uuid=command.file_uuid,
        blob_sha256=content.sha256,
        size_bytes=new.size_bytes,
        replicas=content.replicas,
        md5=content.md5,
        manifest=content.manifest,
        as_of=content.as_of,
        patch_offset=-1,
    )
    _require_stored(change, new, completion)
    return completion


def end_at_once(change: Change, row: files.FileRow, completion: CompleteUpload) -> UploadRecord:
    """Make a file available that was just created, with content that `stored` accepted."""
    contents.make_available(change, row, completion)
    row = msgspec.structs.replace(row, status="available", blob_sha256=completion.blob_sha256)
    return _record(change, row, None)


def terminate(change: Change, command: TerminateUpload) -> None:
    """Delete an upload that has not ended. Needs write.

    Raises Conflict for the parent of a backup, and for a part of a final upload.
    """
    row, _ = _require(change, command.caller, command.file_uuid)
    if row.status not in ("pending", "uploading"):
        raise Conflict("This upload has ended; delete the file instead.")
    files.require_removable(change.db, row)
    files.remove(change, row)


def _end(change: Change, row: files.FileRow) -> None:
    """Delete the rows that the file has only while it is uploaded."""
    quotas.add_reserved(change.db, row.bucket_id, -quotas.of_upload(change.db, row.file_uuid))
    files.remove_parts(change, row.file_uuid)
    change.db.execute("DELETE FROM uploads WHERE file_uuid = ?", (row.file_uuid,))


def _completed(change: Change, command: CompleteUpload) -> ContentRecord:
    return contents.record(change.db, command.file_uuid)


def _begin_epoch(
    change: Change, file_uuid: str, earlier: _Upload, *, lost: list[str] | None = None, **changed: object
) -> _Upload:
    """Change the upload in a new epoch: pending reports of its holder are rejected from then on.

    `lost`: nodes that have said that they lack its bytes, so it starts over. Raises Conflict if others may
    have them.
    """
    if lost is not None:
        _require_lost(change, earlier, lost)
        changed |= {"offset_bytes": 0, "prefix_sha256": ""}
    upload = msgspec.structs.replace(earlier, epoch=earlier.epoch + 1, **changed)
    _write(change, file_uuid, upload)
    return upload


def _require_as_seen(
    change: Change, command: TakeOverUpload | RestartUpload
) -> tuple[files.FileRow, _Upload | None]:
    """Check the upload like `_require_held`. Raises Conflict also if its offset is not the expected one."""
    row, upload = _require_held(change, command, command.holder)
    if upload is not None and command.offset_bytes != upload.offset_bytes:
        raise Conflict(f"This upload stands at {upload.offset_bytes}.")
    return row, upload


def _require_held(
    change: Change, command: RecordProgress | RewindUpload | TakeOverUpload | RestartUpload, node_id: str
) -> tuple[files.FileRow, _Upload | None]:
    """Return the file and its upload, None if the upload has ended well.

    Raises Conflict unless this node is the holder of the upload, in this epoch.
    """
    row, found = _require(change, command.caller, command.file_uuid)
    upload = _live(change, row, found)
    if upload is not None and not _is_held(upload, node_id, command.epoch):
        raise Conflict(f"Node {upload.placement[0]} holds this upload, in epoch {upload.epoch}.")
    return row, upload


def _is_held(upload: _Upload, node_id: str, epoch: int) -> bool:
    return (upload.placement[0], upload.epoch) == (node_id, epoch)


def _with_room(change: Change, bucket_id: str, upload: _Upload, wanted_bytes: int) -> int:
    """Return what the upload reserves if it is to have this many bytes.

    Raises PayloadTooLarge or RateLimited if the bucket has no room for the additional bytes.
    """
    if wanted_bytes <= upload.reserved_bytes:
        return upload.reserved_bytes
    more_bytes = wanted_bytes - upload.reserved_bytes
    quotas.require_room(change.db, bucket_id, more_bytes)
    return upload.reserved_bytes + quotas.grant(change.db, bucket_id, more_bytes)


def _reserve(change: Change, row: files.FileRow, upload: _Upload, size_bytes: int) -> _Upload:
    """Reserve exactly its size for the upload; return the changed upload. Raises as `_with_room`."""
    reserved_bytes = min(_with_room(change, row.bucket_id, upload, size_bytes), size_bytes)
    quotas.add_reserved(change.db, row.bucket_id, reserved_bytes - upload.reserved_bytes)
    upload = msgspec.structs.replace(upload, reserved_bytes=reserved_bytes)
    _write(change, row.file_uuid, upload)
    return upload


def _reserved_for_holder(upload: _Upload | None) -> int | msgspec.UnsetType:
    """Return the reserved bytes, which bound the holder; unset without a quota."""
    return msgspec.UNSET if upload is None or not upload.quota_bytes else upload.reserved_bytes


def _patch_offset(scope: Change | Question, row: files.FileRow) -> int | msgspec.UnsetType:
    """Return the offset of the PATCH that completed the upload, if known."""
    found = scope.db.execute("SELECT patch_offset FROM files WHERE sequence = ?", (row.sequence,)).fetchone()
    return msgspec.UNSET if found[0] is None else found[0]


def _parts(scope: Change | Question, sequence: int) -> list[str] | msgspec.UnsetType:
    """Return the partial uploads that form the content; unset for none."""
    found = scope.db.execute("SELECT parts FROM concatenations WHERE sequence = ?", (sequence,)).fetchone()
    return msgspec.UNSET if found is None else _node_ids(found[0])


def _checked_placement(change: Change, command: RecordProgress) -> list[str]:
    """Return the new placement, [] for none. Raises InvalidRequest."""
    placement = command.placement
    if not placement:
        return []
    if placement[0] != command.node_id or len(set(placement)) != len(placement):
        raise InvalidRequest("placement: must begin with node_id, and name each node once.")
    _require_nodes(change, placement)
    return placement


def _require_nodes(change: Change, placement: list[str]) -> None:
    """Raise InvalidRequest for an impossible placement."""
    if not placement or len(set(placement)) != len(placement):
        raise InvalidRequest("placement: must name nodes, and each once.")
    if contents.known_nodes(change, placement) != len(placement):
        raise InvalidRequest("placement: names an unknown node.")


def _require_lost(change: Change, upload: _Upload, lost: list[str]) -> None:
    """Raise Conflict while a node of the placement is a member that was not asked for the bytes."""
    unasked = [node_id for node_id in upload.placement if node_id not in lost]
    if unasked and contents.known_nodes(change, unasked):
        raise Conflict("Nodes that may have what is acknowledged of this upload were not asked.")


def _write(change: Change, file_uuid: str, upload: _Upload) -> None:
    change.db.execute(
        "UPDATE uploads SET placement = ?, offset_bytes = ?, expires_at_ms = ?, epoch = ?, prefix_sha256 = ?,"
        " reserved_bytes = ? WHERE file_uuid = ?",
        (
            _encode(upload.placement).decode(),
            upload.offset_bytes,
            upload.expires_at_ms,
            upload.epoch,
            upload.prefix_sha256,
            upload.reserved_bytes,
            file_uuid,
        ),
    )


def _require_stored(
    change: Change,
    declared: files.FileRow | files.NewFile,
    completion: CompleteUpload,
    upload: _Upload | None = None,
) -> None:
    """Raise unless the content is as declared, has room, and is on enough nodes."""
    size_bytes, sha256 = completion.size_bytes, completion.blob_sha256
    if declared.size_bytes not in (None, size_bytes):
        raise InvalidRequest(f"size_bytes: {declared.size_bytes} were declared, {size_bytes} came.")
    if declared.expected_sha256 not in ("", sha256):
        raise ChecksumMismatch("blob_sha256: the content is not what was declared.")
    contents.require_quota(change, declared.bucket_id, size_bytes)
    contents.require_quorum(change, completion.replicas)
    if upload is not None:
        _with_room(change, declared.bucket_id, upload, size_bytes)
    blobs.check_size(change.db, sha256, size_bytes)
    replicas.require_present(change.db, sha256, completion.replicas, completion.as_of)


def _require(
    scope: Change | Question, caller: Caller, file_uuid: str
) -> tuple[files.FileRow, _Upload | None]:
    """Return the file, if the caller has write on it, with its upload if that has not ended.

    Raises the errors of `files.require`.
    """
    user = require_user(scope.users, caller)
    row = scope.db.execute(
        f"SELECT {files.ROW_COLUMNS}, {_COLUMNS},"
        " (SELECT quota_bytes FROM buckets b WHERE b.bucket_id = f.bucket_id)"
        " FROM files f LEFT JOIN uploads u ON u.file_uuid = f.file_uuid WHERE f.file_uuid = ?",
        (file_uuid,),
    ).fetchone()
    kind = PARTIAL if row is not None and row[2] == PARTIAL else ""
    file = files.permitted(scope, user, row, Level.WRITE, kind)
    return file, _upload_of(row[-7:])


def _upload_of(row: Sequence[Any]) -> _Upload | None:
    """Return the upload in a row of _COLUMNS; None if there is none."""
    return None if row[0] is None else _Upload(_node_ids(row[0]), *row[1:])


def _live(scope: Change | Question, row: files.FileRow, upload: _Upload | None) -> _Upload | None:
    """Return the upload, None if it has ended well. Raises Gone for an expired one."""
    if row.status == "tombstoned":
        raise Gone("The retention period of this file has passed.")
    if row.status == "available":
        return None
    assert upload is not None, "what is not available yet has its upload"
    if upload.expires_at_ms <= scope.at_ms:
        raise Gone("This upload has expired.")
    return upload


def _record(scope: Change | Question, row: files.FileRow, upload: _Upload | None) -> UploadRecord:
    return UploadRecord(
        file_uuid=row.file_uuid,
        status=row.status,
        placement=upload.placement if upload else [],
        size_bytes=row.size_bytes,
        expected_sha256=row.expected_sha256,
        blob_sha256=row.blob_sha256,
        offset_bytes=upload.offset_bytes if upload else row.size_bytes or 0,
        expires_at_ms=upload.expires_at_ms if upload else 0,
        kind=row.kind,
        as_of=scope.log_index if isinstance(scope, Change) else scope.as_of(),
        epoch=upload.epoch if upload else 0,
        prefix_sha256=upload.prefix_sha256 if upload else "",
        reserved_bytes=_reserved_for_holder(upload),
        patch_offset=msgspec.UNSET if upload else _patch_offset(scope, row),
        parts=_parts(scope, row.sequence),
    )
