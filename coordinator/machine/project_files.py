"""Project files: exported network-emulation projects, and the options they were exported with."""

from typing import Any

from coordinator.commands import CreateProjectFile, DeleteFile, UpdateProjectFile
from coordinator.machine import files, uploads
from coordinator.machine.access import Level, require_user
from coordinator.machine.change import Change, Question
from coordinator.queries import GetProjectFile, ListProjectFiles
from coordinator.records import ProjectFilePage, ProjectFileRecord, UploadRecord

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


def create(change: Change, command: CreateProjectFile) -> UploadRecord:
    """The file record, its project row and its upload: one change."""
    user = require_user(change.db, command.caller)
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
    values = [int(v) if isinstance(v := getattr(command, name), bool) else v for name in _UPDATABLE]
    change.db.execute(
        f"INSERT INTO project_files (file_uuid, sequence, owner_id, project_id, {', '.join(_UPDATABLE)})"
        f" VALUES (?, ?, ?, ?, {', '.join('?' * len(_UPDATABLE))})",
        (command.file_uuid, change.log_index, user.user_id, command.project_id, *values),
    )
    return uploads.begin(change, command.file_uuid, command.placement)


def update(change: Change, command: UpdateProjectFile) -> ProjectFileRecord:
    """Change what the command names. Needs write."""
    files.require(change, command.caller, command.file_uuid, Level.WRITE, KIND)
    named = [(name, getattr(command, name)) for name in _UPDATABLE if getattr(command, name) is not None]
    if named:
        assignments = ", ".join(f"{name} = ?" for name, _ in named)
        change.db.execute(
            f"UPDATE project_files SET {assignments} WHERE file_uuid = ?",
            (*(int(v) if isinstance(v, bool) else v for _, v in named), command.file_uuid),
        )
        change.db.execute(
            "UPDATE files SET updated_at_ms = ? WHERE file_uuid = ?", (change.at_ms, command.file_uuid)
        )
    return _record(change, command.file_uuid)


def delete(change: Change, command: DeleteFile) -> None:
    """Remove the record and its file, and the reference to its blob. Needs admin on the file."""
    row = files.require(change, command.caller, command.file_uuid, Level.ADMIN, command.kind)
    files.remove(change, row)


def get(question: Question, query: GetProjectFile) -> ProjectFileRecord:
    """The record. Needs read."""
    files.require(question, query.caller, query.file_uuid, Level.READ, KIND)
    return _record(question, query.file_uuid)


def list_page(question: Question, query: ListProjectFiles) -> ProjectFilePage:
    """One page, oldest first: what the caller owns, for admins all; the filter comes after access control."""
    user = require_user(question.db, query.caller)
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
        f"SELECT {_COLUMNS} FROM project_files p JOIN files f ON f.file_uuid = p.file_uuid"
        f" WHERE {' AND '.join(conditions)} ORDER BY p.sequence LIMIT ?",
        (*values, limit + 1),
    ).fetchall()
    page = rows[:limit]
    return ProjectFilePage([_from_row(row) for row in page], page[-1][-1] if len(rows) > limit else 0)


def _record(scope: Change | Question, file_uuid: str) -> ProjectFileRecord:
    row = scope.db.execute(
        f"SELECT {_COLUMNS} FROM project_files p JOIN files f ON f.file_uuid = p.file_uuid"
        " WHERE p.file_uuid = ?",
        (file_uuid,),
    ).fetchone()
    assert row is not None, "a file of this kind has its row"
    return _from_row(row)


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
