"""The rows of a deleted file as one document, from which they are written again when it is restored.

A file's rows are those of `files`, of its kind, and of what else has its sequence. Public links are left out:
they end with the deletion. A permission of a user comes back only if no command has ended that user's
permissions since: the document has the generations of these users, which such a command raises.
"""

import sqlite3
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from metadata.model.later_fields import LATER
from metadata.model.records import BACKUP, PROJECT_FILE, VM

_Row = dict[str, str | int | None]
_OF_KIND: Final[Mapping[str, tuple[str, ...]]] = {
    PROJECT_FILE: ("project_files", "manifests"),
    VM: ("vms",),
    BACKUP: ("backups",),
}
_OF_EVERY: Final = ("file_paths", "concatenations", "protected_files")
_GRANTS: Final = "file_permissions"
KEPT_TABLES: Final = frozenset(
    {
        "files",
        *(table for tables in _OF_KIND.values() for table in tables),
        *_OF_EVERY,
        _GRANTS,
        *(each.table for each in LATER),
    }
)
ENDED_TABLES: Final = frozenset({"public_tokens", "uploads"})  # with the deletion, or the upload
_USER: Final = "user:"


class _Document(Struct, frozen=True):
    """Rows by table, in the order in which they are written; generations by user."""

    rows: dict[str, list[_Row]]
    generations: dict[str, int]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Document).decode


def read(db: sqlite3.Connection, sequence: int, kind: str) -> str:
    """Return the document of the file with this sequence."""
    later = tuple(each.table for each in LATER if each.kind == kind)
    rows = {"files": _rows(db, "files", "sequence", sequence)}
    for table in (*_OF_KIND[kind], *later, *_OF_EVERY):
        if found := _rows(db, table, "sequence", sequence):
            rows[table] = found
    generations = {}
    if granted := _rows(db, _GRANTS, "file_sequence", sequence):
        rows[_GRANTS] = granted
        users = sorted({user for row in granted if (user := _user_of(row))})
        generations = {user: _generation(db, user) for user in users}
    return _encode(_Document(rows, generations)).decode()


def write(
    db: sqlite3.Connection, document: str, *, bucket_id: str, owner_id: str, updated_at_ms: int | None
) -> None:
    """Write the rows again, in this bucket and for this owner. `updated_at_ms`: None leaves it as it was."""
    kept = _decode(document.encode())
    changed: _Row = {"bucket_id": bucket_id, "owner_id": owner_id}
    if updated_at_ms is not None:
        changed["updated_at_ms"] = updated_at_ms
    for table, rows in kept.rows.items():
        for row in rows:
            user = _user_of(row) if table == _GRANTS else ""
            if user and _generation(db, user) != kept.generations[user]:
                continue
            values = row | {name: value for name, value in changed.items() if name in row}
            marks = ", ".join("?" * len(values))
            db.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", (*values.values(),))


def _rows(db: sqlite3.Connection, table: str, key: str, sequence: int) -> list[_Row]:
    assert table in KEPT_TABLES
    cursor = db.execute(f"SELECT * FROM {table} WHERE {key} = ? ORDER BY sequence", (sequence,))
    found = cursor.fetchall()
    names = [column[0] for column in cursor.description] if found else []
    return [dict(zip(names, row, strict=True)) for row in found]


def _user_of(grant: _Row) -> str:
    """Return the user that a permission was granted to, "" for a group or role."""
    principal = str(grant["principal"])
    return principal.removeprefix(_USER) if principal.startswith(_USER) else ""


def _generation(db: sqlite3.Connection, user_id: str) -> int:
    """Return the generation of a user, which rises when its permissions end; 0 if there is no such user."""
    row = db.execute("SELECT generation FROM users WHERE user_id = ? AND deleted = 0", (user_id,)).fetchone()
    return 0 if row is None else int(row[0])
