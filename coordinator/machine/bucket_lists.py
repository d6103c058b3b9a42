"""The lists of a bucket: its files, those of a folder, and its folders.

Tested by tests/unit/coordinator/machine/test_buckets.py.
"""

import json
import sqlite3
from collections.abc import Iterator

from msgspec import Struct

from ca.errors import NotFound
from coordinator.machine import files, folders
from coordinator.machine.execution.access import (
    Level,
    User,
    level_on_bucket,
    own_or_granted,
    received_condition,
    require_bucket_level,
    require_user,
)
from coordinator.machine.execution.change import Question
from coordinator.machine.execution.pages import (
    LIST_SCAN_MAX,
    Condition,
    Listing,
    Row,
    file_filters,
    read_page,
)
from metadata.model.listed_records import FolderPage
from metadata.model.records import DEFAULT_BUCKET_ID, PARTIAL, Caller, FilePage, FileRecord
from metadata.protocol.queries import BucketFilesQuery, ListFolderFiles, ListFolders

_IS_FILE = Condition("f.kind <> ?", (PARTIAL,))  # for lists of every kind
_WINDOW_ROWS_MIN = 256  # candidates that a list of what is shared reads at once
_GRANTS_MAX = 20_000  # permissions on single files that a list of folders looks at
_LAST = "\U0010ffff"  # after every path


def list_files(question: Question, query: BucketFilesQuery) -> FilePage:
    """One page of the files in a bucket or in a folder of it, oldest first. Needs read on the bucket.

    Of the default bucket everybody sees what it owns, and what was granted on the file itself.
    """
    user, may_read = _reader(question, query.caller, query.bucket_id)
    page = _bucket_page if may_read else _shared_page
    rows, next_cursor = page(question, user, query, _wanted(question.db, query))
    return FilePage([FileRecord(**files.fields_of(row), kind=row[-2]) for row in rows], next_cursor)


def list_folders(question: Question, query: ListFolders) -> FolderPage:
    """Return the names of the folders in a folder, by name. Needs read on the bucket.

    In the default bucket, callers without read see the folders with files that they own or were granted.
    """
    user, may_read = _reader(question, query.caller, query.bucket_id)
    start = f"{folders.key_of(query.path)}{folders.SEPARATOR}" if query.path else ""
    after = f"{start}{query.after}{folders.AFTER_SEPARATOR}" if query.after else start
    rows = Condition("bucket_id = ?", (query.bucket_id,))
    if not may_read:
        rows = Condition("bucket_id = ? AND owner_id = ?", (query.bucket_id, user.user_id))
    names = [
        name for name, _ in zip(_names(question.db, rows, start, after), range(query.limit + 1), strict=False)
    ]
    if not may_read:
        names = sorted({*names, *_granted(question, user, query.bucket_id, start, after)})
    shown = names[: query.limit]
    return FolderPage(shown, shown[-1] if len(names) > query.limit else "")


def _reader(question: Question, caller: Caller, bucket_id: str) -> tuple[User, bool]:
    """Return the user, and whether it may read the whole bucket, which only the default one does not need.

    Raises Unauthorized, NotFound, Forbidden.
    """
    user = require_user(question.users, caller)
    bucket = question.db.execute("SELECT owner_id FROM buckets WHERE bucket_id = ?", (bucket_id,)).fetchone()
    if bucket is None:
        raise NotFound("There is no such bucket.")
    if bucket_id == DEFAULT_BUCKET_ID:
        return user, level_on_bucket(question, user, owner_id=bucket[0], bucket_id=bucket_id) >= Level.READ
    require_bucket_level(question, user, Level.READ, owner_id=bucket[0], bucket_id=bucket_id)
    return user, True


class _Wanted(Struct, frozen=True, kw_only=True):
    """The files that a list of a bucket is of.

    At most one of these is not "", and finds them by an index: `folder` those in it, `below` the few in a
    folder and below it, `name` those with it.
    """

    folder: str = ""
    below: str = ""
    name: str = ""
    filters: tuple[Condition, ...]


def _wanted(db: sqlite3.Connection, query: BucketFilesQuery) -> _Wanted:
    filters = (_IS_FILE, *file_filters(query))
    if not isinstance(query, ListFolderFiles):
        return _Wanted(filters=filters)
    path, name = query.path, query.name
    named = (*filters, Condition("f.filename = ?", (name,))) if name else filters
    if query.is_recursive:
        if path and _are_few(db, query.bucket_id, folders.range_below(path)):
            return _Wanted(below=path, filters=named)
        return _Wanted(name=name, filters=(*filters, folders.below(path)) if path else filters)
    if path and not (name and not _are_few(db, query.bucket_id, folders.range_in(path))):
        return _Wanted(folder=path, filters=named)
    return _Wanted(name=name, filters=(*filters, folders.directly_in(path)))


def _are_few(db: sqlite3.Connection, bucket_id: str, paths: tuple[str, str]) -> bool:
    """Return whether one page may look at all files with these paths."""
    rows = "SELECT 1 FROM file_paths WHERE bucket_id = ? AND path >= ? AND path < ? LIMIT ?"
    counted = db.execute(f"SELECT COUNT(*) FROM ({rows})", (bucket_id, *paths, LIST_SCAN_MAX))
    return int(counted.fetchone()[0]) < LIST_SCAN_MAX


def _bucket_page(
    question: Question, _user: User, query: BucketFilesQuery, wanted: _Wanted
) -> tuple[list[Row], int]:
    """Return all files in the bucket, and the next cursor."""
    candidates = [Condition("f.bucket_id = ?", (query.bucket_id,))]
    if wanted.name:
        candidates.append(Condition("f.filename = ?", (wanted.name,)))
    if wanted.below:
        rows = "SELECT sequence FROM file_paths WHERE bucket_id = ? AND path >= ? AND path < ?"
        values = (query.bucket_id, *folders.range_below(wanted.below))
        candidates = [Condition(f"f.sequence IN ({rows})", values)]
    if wanted.folder:
        in_folder = "p.bucket_id = ? AND p.path = ?"
        candidates = [Condition(in_folder, (query.bucket_id, folders.key_of(wanted.folder)))]
    listing = Listing(
        columns=f"{files.FILE_COLUMNS}, f.kind, f.sequence",
        table="file_paths p" if wanted.folder else "files f",
        joined="CROSS JOIN files f ON f.sequence = p.sequence" if wanted.folder else "",
        sequence="p.sequence" if wanted.folder else "f.sequence",
        candidates=tuple(candidates),
        filters=wanted.filters,
    )
    return read_page(question.db, listing, cursor=query.cursor, limit=query.limit)


def _shared_page(
    question: Question, user: User, query: BucketFilesQuery, wanted: _Wanted
) -> tuple[list[Row], int]:
    """Return files in the bucket that the user owns or has a permission on, and the next cursor."""
    filters = (own_or_granted(question, user), *wanted.filters)
    # A permission may be on a file elsewhere.
    if wanted.folder:
        filters = (*filters, folders.directly_in(wanted.folder))
    if wanted.below:
        filters = (*filters, folders.below(wanted.below))
    if wanted.name:
        filters = (*filters, Condition("f.filename = ?", (wanted.name,)))
    conditions = " AND ".join(condition.sql for condition in filters)
    statement = (
        f"SELECT {files.FILE_COLUMNS}, f.kind, f.sequence FROM files f"
        f" WHERE f.sequence IN (SELECT value FROM json_each(?)) AND {conditions} ORDER BY f.sequence"
    )
    values = tuple(value for condition in filters for value in condition.values)
    found: list[Row] = []
    looked_at, after = 0, query.cursor
    while looked_at < LIST_SCAN_MAX:
        rows_max = min(max(query.limit + 1, _WINDOW_ROWS_MIN), LIST_SCAN_MAX - looked_at)
        window = _shared_sequences(question.db, user, query.bucket_id, wanted, after, rows_max)
        found += question.db.execute(statement, (json.dumps(window), *values)).fetchall()
        if len(found) > query.limit:
            return found[: query.limit], found[query.limit - 1][-1]
        if len(window) < rows_max:
            return found, 0
        looked_at, after = looked_at + rows_max, window[-1]
    return found, after


def _shared_sequences(
    db: sqlite3.Connection, user: User, bucket_id: str, wanted: _Wanted, after: int, rows_max: int
) -> list[int]:
    """The next files that the user owns there, or that a permission of its principals is or was on.

    Each part is in the order of an index, so SQLite merges them without reading more than it answers.
    """
    owned, owned_values = "FROM files WHERE bucket_id = ? AND owner_id = ?", [bucket_id, user.user_id]
    if wanted.folder:
        owned = "FROM file_paths WHERE bucket_id = ? AND owner_id = ? AND path = ?"
        owned_values.append(folders.key_of(wanted.folder))
    if wanted.below:
        owned = "FROM file_paths WHERE bucket_id = ? AND owner_id = ? AND path >= ? AND path < ?"
        owned_values += folders.range_below(wanted.below)
    if wanted.name:  # the plus keeps the index of owners out
        owned = "FROM files WHERE bucket_id = ? AND +owner_id = ? AND filename = ?"
        owned_values.append(wanted.name)
    granted = (
        " UNION SELECT file_sequence FROM file_permissions"
        " WHERE principal = ? AND bucket_id = ? AND file_sequence > ?"
    )
    values = [value for principal in user.principals for value in (principal, bucket_id, after)]
    rows = db.execute(
        f"SELECT sequence {owned} AND sequence > ?{granted * len(user.principals)} ORDER BY 1 LIMIT ?",
        (*owned_values, after, *values, rows_max),
    ).fetchall()
    return [sequence for (sequence,) in rows]


def _names(db: sqlite3.Connection, rows: Condition, start: str, after: str) -> Iterator[str]:
    """Yield the names directly below `start`, whose rows come after `after`.

    Each is one step in an index, however many files the folder has.
    """
    end = f"{start[:-1]}{folders.AFTER_SEPARATOR}" if start else _LAST
    statement = (
        f"SELECT path FROM file_paths WHERE {rows.sql} AND path > ? AND path < ? ORDER BY path LIMIT 1"
    )
    while (row := db.execute(statement, (*rows.values, after, end)).fetchone()) is not None:
        name = row[0][len(start) :].partition(folders.SEPARATOR)[0]
        yield name
        after = f"{start}{name}{folders.AFTER_SEPARATOR}"


def _granted(question: Question, user: User, bucket_id: str, start: str, after: str) -> set[str]:
    """Return the names directly below `start` with files that the user has a permission on."""
    granted = received_condition(question, user)
    rows = question.db.execute(
        "SELECT DISTINCT p.path FROM"
        f" (SELECT file_sequence FROM file_permissions WHERE {granted.sql} AND bucket_id = ? LIMIT ?) g"
        " CROSS JOIN file_paths p ON p.sequence = g.file_sequence"
        " WHERE p.path > ? AND substr(p.path, 1, ?) = ?",
        (*granted.values, bucket_id, _GRANTS_MAX, after, len(start), start),
    )
    return {path[len(start) :].partition(folders.SEPARATOR)[0] for (path,) in rows}
