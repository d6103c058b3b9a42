"""The kinds of file: each is described once, and creation, lookup, change and lists follow from that.

A kind has a table in addition to `files`, with a row of the same sequence: one log entry creates both. Its
columns are the additional fields of the kind's record, creating and updating commands, compared with those of
every file; the additional fields of its query narrow its list. A field that was added later is unset in the
record by default, as in replies of members that do not know it. Its column has the same name, in a table of
its own (`vms_os_name` for `os_name` of `vms`) with a row for each file that has a value: see "A field of a
kind of file" in CONTRIBUTING.md.
"""

import sqlite3
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ca.errors import Gone, InvalidRequest, NotFound
from coordinator.machine import files, folders, parts, uploads
from coordinator.machine.execution import protection, states
from coordinator.machine.execution.access import Level, User, require_file_level, require_user
from coordinator.machine.execution.change import Change, Question
from coordinator.machine.execution.pages import Condition, Listing, Row, file_filters, read_page
from metadata.model.records import Caller, FileRecord, UploadRecord
from metadata.protocol.commands import CreateFile, UpdateFile
from metadata.protocol.queries import ListFilesQuery

RecordType = TypeVar("RecordType", bound=FileRecord)

RETENTION_HOURS_MAX = 876_000  # a hundred years: a command may name more
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[RecordType]):
    """A kind of file, made by `describe`. `shown`: the kind's own fields of the record, in its order.

    `flags`: those of them that are true or false; `later`: those that have a table each. `created`: what a
    creation sets; `updated`: what an update may change; `filters`: what its list is narrowed by without an
    index.
    """

    name: str
    table: str
    record_type: type[RecordType]
    shown: tuple[str, ...]
    flags: frozenset[str]
    later: frozenset[str]
    created: tuple[str, ...]
    updated: tuple[str, ...]
    filters: tuple[str, ...]
    columns: str  # of `files f`, its own table `k` and `later`: those of a FileRecord, `shown`, the sequence
    joined: str  # the tables of `later`

    def column(self, name: str) -> str:
        """A field of `shown` as SQL names it."""
        return f"{self.table}_{name}.{name}" if name in self.later else f"k.{name}"


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
    later = frozenset(each.name for each in msgspec.structs.fields(record_type) if each.default is UNSET)
    tables = [f"{table}_{field}" for field in shown if field in later]
    kind = Kind(
        name=name,
        table=table,
        record_type=record_type,
        shown=shown,
        flags=flags,
        later=later & {*shown},
        created=_without(created_by, CreateFile),
        updated=_without(updated_by, UpdateFile),
        filters=tuple(name for name in _without(listed_by, ListFilesQuery) if name not in indexed),
        columns="",
        joined=" ".join(f"LEFT JOIN {each} ON {each}.sequence = k.sequence" for each in tables),
    )
    columns = (files.FILE_COLUMNS, *map(kind.column, shown), "k.sequence")
    return replace(kind, columns=", ".join(columns))


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
        path=command.path or "",
    )
    taken = parts.require(change, user, command)
    files.check_new(change, user, new, given_back_bytes=taken.reserved_in(command.bucket_id))
    completion = uploads.stored(change, new, command)
    protected_ms = protection.wanted_ms(change, command.protect_seconds)
    row = files.insert(change, user, new)
    if protected_ms is not None:
        protection.extend(change, row.sequence, protected_ms)
    own = {name: getattr(command, name) for name in kind.created}
    first = {"sequence": change.log_index, "file_uuid": command.file_uuid, "owner_id": user.user_id}
    columns = first | {name: value for name, value in own.items() if name not in kind.later}
    change.db.execute(
        f"INSERT INTO {kind.table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})",
        (*columns.values(),),
    )
    _store_later(change, kind, change.log_index, own)
    if completion is not None:
        return uploads.end_at_once(change, row, completion)
    taken.join(change, command)
    return uploads.begin(change, row, command.placement)


def require(
    scope: Change | Question, kind: Kind[RecordType], user: User, file_uuid: str, level: Level
) -> tuple[int, RecordType]:
    """Sequence and record, if the user has `level` on the file.

    Raises NotFound (for a file of another kind too) or Forbidden.
    """
    sequence, record = find(scope.db, kind, file_uuid)
    require_file_level(
        scope, user, level, owner_id=record.owner_id, bucket_id=record.bucket_id, sequence=sequence
    )
    return sequence, record


def find(db: sqlite3.Connection, kind: Kind[RecordType], file_uuid: str) -> tuple[int, RecordType]:
    """Return sequence and record, for any caller. Raises NotFound, for a file of another kind too."""
    row = db.execute(
        f"SELECT {kind.columns} FROM files f CROSS JOIN {kind.table} k ON k.sequence = f.sequence"
        f" {kind.joined} WHERE f.file_uuid = ?",
        (file_uuid,),
    ).fetchone()
    if row is None:
        raise NotFound("There is no such file.")
    return row[-1], _record(kind, row)


def get(question: Question, kind: Kind[RecordType], caller: Caller, file_uuid: str) -> RecordType:
    """The record. Needs read."""
    user = require_user(question.users, caller)
    return require(question, kind, user, file_uuid, Level.READ)[1]


def named(kind: Kind[RecordType], command: UpdateFile) -> dict[str, Any]:
    """Return the fields that an updating command sets; None or unset fields keep their values."""
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

    Nothing named is no change. Raises what `_plan_retention` does, PreconditionFailed.
    """
    retained, labels = _plan_retention(change, sequence, command), files.labels_named(change, command)
    states.require(record.updated_at_ms, command.unchanged_since_ms)
    is_moved = isinstance(command.path, str) and command.path != (record.path or "")
    if not values and not labels and retained is None and not is_moved:
        return record
    if own := {name: value for name, value in values.items() if name not in kind.later}:
        assignments = ", ".join(f"{name} = ?" for name in own)
        change.db.execute(
            f"UPDATE {kind.table} SET {assignments} WHERE sequence = ?", (*own.values(), sequence)
        )
    _store_later(change, kind, sequence, values)
    if retained is not None:
        _store_retention(change, sequence, retained)
        values = values | _shown_retention(retained)
    if isinstance(command.path, str):
        folders.place(change, sequence, command.path)
        values = values | {"path": command.path or UNSET}
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
        *file_filters(query),
        *(Condition(f"{kind.column(name)} = ?", (value,)) for name, value in own.items()),
    )
    if not user.is_admin and owner_is_filter:
        filters = (Condition("+k.owner_id = ?", (user.user_id,)), *filters)  # + keeps its index out
    elif not user.is_admin:
        candidates = (Condition("k.owner_id = ?", (user.user_id,)), *candidates)
    listing = Listing(
        columns=kind.columns,
        table=f"{kind.table} k",
        joined=f"CROSS JOIN files f ON f.sequence = k.sequence {kind.joined}",
        sequence="k.sequence",
        candidates=candidates,
        filters=filters,
    )
    rows, next_cursor = read_page(question.db, listing, cursor=query.cursor, limit=query.limit)
    return [_record(kind, row) for row in rows], next_cursor


def _store_later(change: Change, kind: Kind[RecordType], sequence: int, values: Mapping[str, Any]) -> None:
    """Store the set values of fields that have their own tables."""
    for name in sorted(kind.later & values.keys()):
        if values[name] is not UNSET:
            change.db.execute(
                f"INSERT INTO {kind.table}_{name} (sequence, {name}) VALUES (?, ?)"
                f" ON CONFLICT (sequence) DO UPDATE SET {name} = excluded.{name}",
                (sequence, values[name]),
            )


def _record(kind: Kind[RecordType], row: Row) -> RecordType:
    fields = files.fields_of(row)
    own = zip(kind.shown, row[len(fields) :], strict=False)  # the sequence ends the row
    given = ((name, value) for name, value in own if value is not None)
    fields.update((name, bool(value) if name in kind.flags else value) for name, value in given)
    return kind.record_type(**fields)


def _without(struct: type[msgspec.Struct], base: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields of a Struct in addition to those of its base, in its order."""
    return tuple(name for name in struct.__struct_fields__ if name not in base.__struct_fields__)


class _Retention(Struct, frozen=True):
    """Two columns of a file: how long it stays once it is available, and when expiry finds it.

    Both are None if it stays for ever, `due_at_ms` also until it is available.
    """

    hours: int | None
    due_at_ms: int | None


def _plan_retention(change: Change, sequence: int, command: UpdateFile) -> _Retention | None:
    """Return the retention that a command gives a file, None for no change.

    Raises Gone for a file whose content is gone by it, InvalidRequest for an end that has passed already.
    """
    hours = command.retention_hours
    if isinstance(hours, UnsetType):
        return None
    status, earlier, available_at_ms = change.db.execute(
        "SELECT status, retention_hours, available_at_ms FROM files WHERE sequence = ?", (sequence,)
    ).fetchone()
    if hours == earlier:
        return None
    if status == "tombstoned":
        raise Gone("The retention period of this file has passed.")
    due_at_ms = None
    if hours is not None and status == "available":
        due_at_ms = available_at_ms + min(hours, RETENTION_HOURS_MAX) * _HOUR_MS
        if due_at_ms <= change.at_ms:
            past_hours = (change.at_ms - available_at_ms) // _HOUR_MS
            raise InvalidRequest(
                f"retention_period: it counts from when the file became available, {past_hours} hours ago,"
                " and would be over. Delete the file instead."
            )
    return _Retention(hours, due_at_ms)


def _store_retention(change: Change, sequence: int, retention: _Retention) -> None:
    """Write the retention of the file with this sequence."""
    change.db.execute(
        "UPDATE files SET retention_hours = ?, due_at_ms = ? WHERE sequence = ?",
        (retention.hours, retention.due_at_ms, sequence),
    )


def _shown_retention(retention: _Retention) -> dict[str, Any]:
    """The retention as fields of a FileRecord."""
    return {
        "retention_hours": UNSET if retention.hours is None else retention.hours,
        "due_at_ms": UNSET if retention.due_at_ms is None else retention.due_at_ms,
    }
