"""The kinds of file: what is said of each once, and the creation, lookup, change and lists made from it.

A kind has a table beside `files`, with a row of the same sequence: one log entry makes both. Its columns are
the fields that the kind's record, creating and updating commands have beside those of every file, and its
list is narrowed by the fields that its query has beside those of every list. A field that came later may be
unset: it is NULL in the table then, and absent from the record, as members that do not know it reply.
"""

import typing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET

from ca.errors import NotFound
from coordinator.machine import files, parts, retention, uploads
from coordinator.machine.execution import states
from coordinator.machine.execution.access import Level, User, require_file_level, require_user
from coordinator.machine.execution.change import Change, Question
from coordinator.machine.execution.pages import Condition, Listing, Row, file_filters, read_page
from coordinator.model.records import Caller, FileRecord, UploadRecord
from coordinator.protocol.commands import CreateFile, UpdateFile
from coordinator.protocol.queries import ListFilesQuery

RecordType = TypeVar("RecordType", bound=FileRecord)

_FILE_FIELDS = tuple(name.strip() for name in files.FILE_COLUMNS.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[RecordType]):
    """A kind of file, made by `describe`. `shown`: the kind's own fields of the record, in its order.

    `flags`: those of them that are true or false. `created`: the columns that a creation sets; `updated`:
    those that an update may change; `filters`: those that its list is narrowed by without an index.
    """

    name: str
    table: str
    record_type: type[RecordType]
    shown: tuple[str, ...]
    flags: frozenset[str]
    created: tuple[str, ...]
    updated: tuple[str, ...]
    filters: tuple[str, ...]
    columns: str  # of `files f` and its own table `k`: those of a FileRecord, `shown`, the sequence


def describe(
    name: str,
    table: str,
    record_type: type[RecordType],
    created_by: type[CreateFile],
    updated_by: type[UpdateFile],
    listed_by: type[ListFilesQuery],
    *,
    indexed: tuple[str, ...] = (),
) -> Kind[RecordType]:
    """The kind whose rows lie in `table`. `indexed`: fields of the query that its `list_page` sees to."""
    shown = _without(record_type, FileRecord)
    flags = frozenset(
        field.name
        for field in msgspec.structs.fields(record_type)
        if bool in (field.type, *typing.get_args(field.type))
    )
    columns = (*(f"f.{field}" for field in _FILE_FIELDS), *(f"k.{field}" for field in shown), "k.sequence")
    return Kind(
        name=name,
        table=table,
        record_type=record_type,
        shown=shown,
        flags=flags,
        created=_without(created_by, CreateFile),
        updated=_without(updated_by, UpdateFile),
        filters=tuple(name for name in _without(listed_by, ListFilesQuery) if name not in indexed),
        columns=", ".join(columns),
    )


def create(change: Change, kind: Kind[RecordType], user: User, command: CreateFile) -> UploadRecord:
    """Create the file record, the row of its kind and its upload in one change, or its content.

    One that is put together from parts is made once, however often that is asked for.
    """
    if (made := parts.made_before(change, command)) is not None:
        return made
    new = files.NewFile(
        file_uuid=command.file_uuid,
        kind=kind.name,
        bucket_id=command.bucket_id,
        filename=command.filename,
        content_type=command.content_type,
        size_bytes=command.size_bytes,
        expected_sha256=command.expected_sha256,
        retention_hours=command.retention_hours,
    )
    taken = parts.require(change, user, command)
    files.check_new(change, user, new, given_back_bytes=taken.reserved_in(command.bucket_id))
    uploads.check_stored(change, command)
    row = files.insert(change, user, new)
    columns = ("sequence", "file_uuid", "owner_id", *kind.created)
    own = (None if (value := getattr(command, name)) is UNSET else value for name in kind.created)
    change.db.execute(
        f"INSERT INTO {kind.table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})",
        (change.log_index, command.file_uuid, user.user_id, *own),
    )
    if command.content is not UNSET:
        return uploads.end_at_once(change, row, command, command.content)
    taken.join(change, command)
    return uploads.begin(change, new, command.placement)


def require(
    scope: Change | Question, kind: Kind[RecordType], user: User, file_uuid: str, level: Level
) -> tuple[int, RecordType]:
    """Sequence and record, if the user has `level` on the file.

    Raises NotFound (for a file of another kind too) or Forbidden.
    """
    row = scope.db.execute(
        f"SELECT {kind.columns} FROM files f CROSS JOIN {kind.table} k ON k.sequence = f.sequence"
        " WHERE f.file_uuid = ?",
        (file_uuid,),
    ).fetchone()
    if row is None:
        raise NotFound("There is no such file.")
    is_reply = isinstance(scope, Change) and not states.are_distinct(scope.db)
    record = _record(kind, row, is_reply=is_reply)
    sequence: int = row[-1]
    require_file_level(
        scope, user, level, owner_id=record.owner_id, bucket_id=record.bucket_id, sequence=sequence
    )
    return sequence, record


def get(question: Question, kind: Kind[RecordType], caller: Caller, file_uuid: str) -> RecordType:
    """The record. Needs read."""
    user = require_user(question.users, caller)
    return require(question, kind, user, file_uuid, Level.READ)[1]


def named(kind: Kind[RecordType], command: UpdateFile) -> dict[str, Any]:
    """What an updating command names: None, or unset, leaves a field as it is."""
    values = {name: getattr(command, name) for name in kind.updated}
    return {name: value for name, value in values.items() if value is not None and value is not UNSET}


def store(
    change: Change,
    kind: Kind[RecordType],
    sequence: int,
    record: RecordType,
    command: UpdateFile,
    values: dict[str, Any],
) -> RecordType:
    """Write these columns of the kind, and what the command says of every file; the record as it is then.

    Nothing named is no change. Raises what `retention.plan` does, PreconditionFailed.
    """
    retained, labels = retention.plan(change, sequence, command), files.labels_named(change, command)
    states.require(change, record.updated_at_ms, command.unchanged_since_ms)
    if not values and not labels and retained is None:
        return record
    if values:
        assignments = ", ".join(f"{name} = ?" for name in values)
        change.db.execute(
            f"UPDATE {kind.table} SET {assignments} WHERE sequence = ?", (*values.values(), sequence)
        )
    if retained is not None:
        retention.store(change, sequence, retained)
        values = values | retention.shown(retained)
    of_file = labels | {"updated_at_ms": states.time_of_next(change, record.updated_at_ms)}
    assignments = ", ".join(f"{name} = ?" for name in of_file)
    change.db.execute(f"UPDATE files SET {assignments} WHERE sequence = ?", (*of_file.values(), sequence))
    return msgspec.structs.replace(record, **of_file, **values)


def list_page(
    question: Question,
    kind: Kind[RecordType],
    query: ListFilesQuery,
    *,
    candidates: tuple[Condition, ...] = (),
    owner_is_filter: bool = False,
) -> tuple[list[RecordType], int]:
    """List one page, oldest first, and the next cursor: what the caller owns, for admins all.

    `candidates` narrow it, on the kind's table `k`: an index that has the owner as well answers them, or with
    `owner_is_filter` one that has not.
    """
    user = require_user(question.users, query.caller)
    own = {name: value for name in kind.filters if (value := getattr(query, name))}
    filters = (
        *file_filters(query.status, query.filename_prefix),
        *(Condition(f"k.{name} = ?", (value,)) for name, value in own.items()),
    )
    if not user.is_admin and owner_is_filter:
        filters = (Condition("+k.owner_id = ?", (user.user_id,)), *filters)  # + keeps its index out
    elif not user.is_admin:
        candidates = (Condition("k.owner_id = ?", (user.user_id,)), *candidates)
    listing = Listing(
        columns=kind.columns,
        table=f"{kind.table} k",
        joined="CROSS JOIN files f ON f.sequence = k.sequence",
        sequence="k.sequence",
        candidates=candidates,
        filters=filters,
    )
    rows, next_cursor = read_page(question.db, listing, cursor=query.cursor, limit=query.limit)
    return [_record(kind, row) for row in rows], next_cursor


def _record(kind: Kind[RecordType], row: Row, *, is_reply: bool = False) -> RecordType:
    fields = files.fields_of(row, is_reply=is_reply)
    own = zip(kind.shown, row[len(fields) :], strict=False)  # the sequence ends the row
    given = ((name, value) for name, value in own if value is not None)
    fields.update((name, bool(value) if name in kind.flags else value) for name, value in given)
    return kind.record_type(**fields)


def _without(struct: type[msgspec.Struct], base: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields that a Struct has beside those of its base, in its order."""
    return tuple(name for name in struct.__struct_fields__ if name not in base.__struct_fields__)
