"""Project files: exported network-emulation projects, and the options they were exported with."""

from typing import Any

import msgspec

from ca.errors import NotFound
from coordinator.commands import CreateProjectFile, DeleteFile, UpdateProjectFile
from coordinator.machine import files, uploads
from coordinator.machine.access import Level, require_level, require_user
from coordinator.machine.change import Change, Question
from coordinator.queries import GetProjectFile, ListProjectFiles
from coordinator.records import Caller, ProjectFilePage, ProjectFileRecord, UploadRecord

KIND = "project_file"
_UPDATABLE = (
    "project_name",
    "version_tag",
    "compression",
    "include_images",
    "include_snapshots",
    "is_read_only",
    "keep_compute_ids",
    "reset_mac_addresses",
)
_COLUMNS = (
    ", ".join("f." + name.strip() for name in files.FILE_COLUMNS.split(","))
    + ", p.project_id, "
    + ", ".join("p." + name for name in _UPDATABLE)
    + ", f.sequence"
)
_JOINED = "project_files p JOIN files f ON f.sequence = p.sequence"  # one log entry made both rows
_INSERT = (
    f"INSERT INTO project_files (file_uuid, sequence, owner_id, project_id, {', '.join(_UPDATABLE)})"
    f" VALUES (?, ?, ?, ?, {', '.join('?' * len(_UPDATABLE))})"
)


def create(change: Change, command: CreateProjectFile) -> UploadRecord:
    """The file record, its project row and its upload: one change."""
    user = require_user(change.users, command.caller)
    new = files.NewFile(
        file_uuid=command.file_uuid,
        kind=KIND,
        bucket_id=command.bucket_id,
        filename=command.filename,
        content_type=command.content_type,
        size_bytes=command.size_bytes,
        expected_sha256=command.expected_sha256,
        retention_hours=command.retention_hours,
    )
    files.check_new(change.db, user, new)
    files.insert(change, user, new)
    change.db.execute(
        _INSERT,
        (
            command.file_uuid,
            change.log_index,
            user.user_id,
            command.project_id,
            command.project_name,
            command.version_tag,
            command.compression,
            int(command.include_images),
            int(command.include_snapshots),
            int(command.is_read_only),
            int(command.keep_compute_ids),
            int(command.reset_mac_addresses),
        ),
    )
    return uploads.begin(change, new, command.placement)


def update(change: Change, command: UpdateProjectFile) -> ProjectFileRecord:
    """Change what the command names. Needs write."""
    sequence, record = _require(change, command.caller, command.file_uuid, Level.WRITE)
    named = {name: value for name in _UPDATABLE if (value := getattr(command, name)) is not None}
    if not named:
        return record
    assignments = ", ".join(f"{name} = ?" for name in named)
    change.db.execute(
        f"UPDATE project_files SET {assignments} WHERE sequence = ?", (*named.values(), sequence)
    )
    change.db.execute("UPDATE files SET updated_at_ms = ? WHERE sequence = ?", (change.at_ms, sequence))
    return msgspec.structs.replace(record, updated_at_ms=change.at_ms, **named)


def delete(change: Change, command: DeleteFile) -> None:
    """Remove the record and its file, and the reference to its blob. Needs admin on the file."""
    row = files.require(change, command.caller, command.file_uuid, Level.ADMIN, command.kind)
    files.remove(change, row)


def get(question: Question, query: GetProjectFile) -> ProjectFileRecord:
    """The record. Needs read."""
    return _require(question, query.caller, query.file_uuid, Level.READ)[1]


def list_page(question: Question, query: ListProjectFiles) -> ProjectFilePage:
    """One page, oldest first: what the caller owns, for admins all; the filter comes after access control."""
    user = require_user(question.users, query.caller)
    limit = query.limit
    conditions: list[str] = ["p.sequence > ?"]
    values: list[str | int] = [query.cursor]
    if query.project_id:
        conditions.append("p.project_id = ?")
        values.append(query.project_id)
    if not user.is_admin:
        conditions.append("p.owner_id = ?")
        values.append(user.user_id)
    rows = question.db.execute(
        f"SELECT {_COLUMNS} FROM {_JOINED} WHERE {' AND '.join(conditions)} ORDER BY p.sequence LIMIT ?",
        (*values, limit + 1),
    ).fetchall()
    page = rows[:limit]
    return ProjectFilePage([_from_row(row) for row in page], page[-1][-1] if len(rows) > limit else 0)


def _require(
    scope: Change | Question, caller: Caller, file_uuid: str, level: Level
) -> tuple[int, ProjectFileRecord]:
    """Sequence and record, if the caller has `level` on the file; errors as in `files.require`."""
    user = require_user(scope.users, caller)
    row = scope.db.execute(f"SELECT {_COLUMNS} FROM {_JOINED} WHERE f.file_uuid = ?", (file_uuid,)).fetchone()
    if row is None:
        raise NotFound("There is no such file.")
    record = _from_row(row)
    require_level(user, record.owner_id, level, "file")
    return row[-1], record


def _from_row(row: tuple[Any, ...]) -> ProjectFileRecord:
    return ProjectFileRecord(
        **files.fields_of(row),
        project_id=row[10],
        project_name=row[11],
        version_tag=row[12],
        compression=row[13],
        include_images=bool(row[14]),
        include_snapshots=bool(row[15]),
        is_read_only=bool(row[16]),
        keep_compute_ids=bool(row[17]),
        reset_mac_addresses=bool(row[18]),
    )
