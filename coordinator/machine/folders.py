"""The folders of a bucket: a file may be in one, and a folder exists while a file is in it or below it.

The table `file_paths` has a row for each file in a folder; a file at the top of its bucket has none. A path
has SEPARATOR there in place of "/". No name contains it and it sorts before every other character, so that a
folder is directly before all that is below it, and before folders whose names begin with its name.
"""

import sqlite3
from collections.abc import Iterator

from ca.errors import NotFound
from coordinator.machine.execution.access import (
    Level,
    User,
    level_on_bucket,
    received,
    require_bucket_level,
    require_user,
)
from coordinator.machine.execution.change import Change, Question
from coordinator.machine.execution.pages import Condition
from metadata.model.listed_records import FolderPage
from metadata.model.records import DEFAULT_BUCKET_ID
from metadata.protocol.queries import ListFolders

SEPARATOR = "\x01"
_AFTER_SEPARATOR = "\x02"
_LAST = "\U0010ffff"  # after every path
_GRANTS_MAX = 20_000  # permissions on single files that a list of folders looks at

# SQL for the path of one of `files f`, NULL at the top.
PATH_COLUMN = "(SELECT path FROM file_paths WHERE file_paths.sequence = f.sequence)"


def key_of(path: str) -> str:
    """Return a path as the table has it."""
    return path.replace("/", SEPARATOR)


def path_of(key: str | None) -> str:
    """Return a path of the table as everybody else has it, "" for the top."""
    return (key or "").replace(SEPARATOR, "/")


def place(change: Change, sequence: int, path: str) -> None:
    """Put a file into a folder, or with "" at the top of its bucket."""
    if not path:
        change.db.execute("DELETE FROM file_paths WHERE sequence = ?", (sequence,))
        return
    change.db.execute(
        "INSERT INTO file_paths (sequence, bucket_id, owner_id, path)"
        " SELECT sequence, bucket_id, owner_id, ? FROM files WHERE sequence = ?"
        " ON CONFLICT (sequence) DO UPDATE SET path = excluded.path",
        (key_of(path), sequence),
    )


def directly_in(path: str) -> Condition:
    """Return the condition that one of `files f` is in a folder, with "" at the top of its bucket."""
    if not path:
        return Condition("NOT EXISTS (SELECT 1 FROM file_paths WHERE file_paths.sequence = f.sequence)")
    return Condition(f"{PATH_COLUMN} = ?", (key_of(path),))


def below(path: str) -> Condition:
    """Return the condition that one of `files f` is in a folder or somewhere below it."""
    key = key_of(path)
    start = key + SEPARATOR
    return Condition(
        f"EXISTS (SELECT 1 FROM file_paths p WHERE p.sequence = f.sequence"
        f" AND (p.path = ? OR substr(p.path, 1, {len(start)}) = ?))",
        (key, start),
    )


def list_page(question: Question, query: ListFolders) -> FolderPage:
    """Return the names of the folders in a folder, by name. Needs read on the bucket.

    In the default bucket, callers without read see the folders with files that they own or were granted.
    """
    user = require_user(question.users, query.caller)
    bucket = question.db.execute(
        "SELECT owner_id FROM buckets WHERE bucket_id = ?", (query.bucket_id,)
    ).fetchone()
    if bucket is None:
        raise NotFound("There is no such bucket.")
    held = level_on_bucket(question, user, owner_id=bucket[0], bucket_id=query.bucket_id)
    start = f"{key_of(query.path)}{SEPARATOR}" if query.path else ""
    after = f"{start}{query.after}{_AFTER_SEPARATOR}" if query.after else start
    everything = Condition("bucket_id = ?", (query.bucket_id,))
    if held < Level.READ and query.bucket_id == DEFAULT_BUCKET_ID:
        owned = Condition("bucket_id = ? AND owner_id = ?", (query.bucket_id, user.user_id))
        own = _take(_names(question.db, owned, start, after), query.limit + 1)
        names = sorted({*own, *_granted(question, user, query.bucket_id, start, after)})
    else:
        require_bucket_level(question, user, Level.READ, owner_id=bucket[0], bucket_id=query.bucket_id)
        names = _take(_names(question.db, everything, start, after), query.limit + 1)
    shown = names[: query.limit]
    return FolderPage(shown, shown[-1] if len(names) > query.limit else "")


def _names(db: sqlite3.Connection, rows: Condition, start: str, after: str) -> Iterator[str]:
    """Yield the names directly below `start`, whose rows come after `after`.

    Each is one step in an index, however many files the folder has.
    """
    end = f"{start[:-1]}{_AFTER_SEPARATOR}" if start else _LAST
    statement = (
        f"SELECT path FROM file_paths WHERE {rows.sql} AND path > ? AND path < ? ORDER BY path LIMIT 1"
    )
    while (row := db.execute(statement, (*rows.values, after, end)).fetchone()) is not None:
        name = row[0][len(start) :].partition(SEPARATOR)[0]
        yield name
        after = f"{start}{name}{_AFTER_SEPARATOR}"


def _granted(question: Question, user: User, bucket_id: str, start: str, after: str) -> set[str]:
    """Return the names directly below `start` with files that the user has a permission on."""
    granted = received(question, user)
    rows = question.db.execute(
        "SELECT DISTINCT p.path FROM"
        f" (SELECT file_sequence FROM file_permissions WHERE {granted.sql} AND bucket_id = ? LIMIT ?) g"
        " CROSS JOIN file_paths p ON p.sequence = g.file_sequence"
        " WHERE p.path > ? AND substr(p.path, 1, ?) = ?",
        (*granted.values, bucket_id, _GRANTS_MAX, after, len(start), start),
    )
    return {path[len(start) :].partition(SEPARATOR)[0] for (path,) in rows}


def _take(names: Iterator[str], count: int) -> list[str]:
    return [name for name, _ in zip(names, range(count), strict=False)]
